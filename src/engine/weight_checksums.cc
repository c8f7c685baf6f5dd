#include "engine/weight_checksums.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "core/hash.h"
#include "kernels/device.h"
#include "model/weights.h"
#include "model/weights/named_weights.h"

namespace switchyard {
namespace {

// Collects "NAME CHECKSUM" lines.
class Checksums {
 public:
  explicit Checksums(SymmetricMemory& memory) : memory_(memory) {}

  void Add(const std::string& name, const WeightView& w) {
    if (!w.defined()) return;
    Fnv1a hash;
    row_.resize(static_cast<size_t>(w.k));
    for (int64_t i = 0; i < w.n; ++i) {
      DequantizeRow(w, i, 0, w.k, row_.data());
      Extend(hash, row_);
    }
    Append(name, hash);
  }
  void Add(const std::string& name, const Tensor& t) {
    if (t.defined()) AddValues(name, t.span<float>());
  }
  void Add(const std::string& name, const LinearWeight& linear) {
    Add(name, linear.w);
    Add(name + ".bias", linear.bias);
  }
  void Add(const std::string& name, const kernels::ExpertWeights& expert) {
    Add(name + ".gate", expert.gate);
    Add(name + ".up", expert.up);
    Add(name + ".down", expert.down);
    Add(name + ".gate_bias", expert.gate_bias, expert.gate.n);
    Add(name + ".up_bias", expert.up_bias, expert.up.n);
    Add(name + ".down_bias", expert.down_bias, expert.down.n);
  }
  void Add(const std::string& name, const float* values, int64_t count) {
    if (values) AddValues(name, {values, static_cast<size_t>(count)});
  }
  std::string Take() { return std::move(lines_); }

 private:
  static void Extend(Fnv1a& hash, std::span<const float> values) {
    for (const float value : values) hash.AddUnit(std::bit_cast<uint32_t>(value));
  }
  void AddValues(const std::string& name, std::span<const float> values) {
    Fnv1a hash;
    Extend(hash, values);
    Append(name, hash);
  }
  void Append(const std::string& name, const Fnv1a& hash) {
    memory_.Beat();  // all weights together may take longer than the watchdog permits
    lines_ += fmt::format("{} {:016x}\n", name, hash.value());
  }

  SymmetricMemory& memory_;
  std::vector<float> row_;
  std::string lines_;
};

void AddExperts(const std::string& name, const MoeLayerWeights& moe, Checksums* sums) {
  sums->Add(name + "router", moe.router.w);
  sums->Add(name + "router_bias", moe.router.bias, moe.router.w.n);
  sums->Add(name + "router_correction", moe.router.correction_bias, moe.router.w.n);
  for (size_t slot = 0; slot < moe.experts.size(); ++slot)
    sums->Add(fmt::format("{}experts.{}", name, slot), moe.experts[slot]);
  sums->Add(name + "shared", moe.shared);
  sums->Add(name + "shared_gate", moe.shared_gate);
}

std::string ChecksumsOf(const ModelWeights& weights, SymmetricMemory& memory) {
  Checksums sums(memory);
  sums.Add("embedding", weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string name = fmt::format("layers.{}.", i);
    sums.Add(name + "input_norm", layer.input_norm);
    sums.Add(name + "post_attention_norm", layer.post_attention_norm);
    sums.Add(name + "attention_output_norm", layer.attention_output_norm);
    sums.Add(name + "feed_forward_output_norm", layer.feed_forward_output_norm);
    AddAttention(name + "attention.", layer, &sums);
    AddStreams(name + "attention_streams.", layer.attention_streams, &sums);
    AddStreams(name + "feed_forward_streams.", layer.feed_forward_streams, &sums);
    sums.Add(name + "latent_in", layer.latent_in);
    sums.Add(name + "latent_out", layer.latent_out);
    sums.Add(name + "dense", layer.dense);
    AddExperts(name + "moe.", layer.moe, &sums);
  }
  AddStreams("head_streams.", weights.head_streams, &sums);
  sums.Add("final_norm", weights.final_norm);
  sums.Add("head", weights.head);
  sums.Add("head_bias", weights.head_bias);
  return sums.Take();
}

// The checksum of an array in the memory of a GPU. `chunk`: a buffer in host memory.
uint64_t HashOfArray(const kernels::DeviceArray& array, kernels::Device& device,
                     std::vector<std::byte>* chunk, SymmetricMemory& memory) {
  constexpr int64_t kChunkBytes = int64_t{8} << 20, kWordBytes = sizeof(uint32_t);
  Fnv1a hash;
  for (int64_t begin = 0; begin < array.bytes; begin += kChunkBytes) {
    const int64_t bytes = std::min(kChunkBytes, array.bytes - begin);
    // Zeros complete the last word.
    chunk->assign(static_cast<size_t>((bytes + kWordBytes - 1) / kWordBytes * kWordBytes), {});
    device.CopyOut(chunk->data(), static_cast<const std::byte*>(array.data) + begin,
                   static_cast<size_t>(bytes));
    for (int64_t at = 0; at < bytes; at += kWordBytes) {
      uint32_t word = 0;
      std::memcpy(&word, chunk->data() + at, sizeof word);
      hash.AddUnit(word);
    }
    memory.Beat();
  }
  return hash.value();
}

std::string ChecksumsOnDevice(Model& model, SymmetricMemory& memory) {
  std::string lines;
  std::vector<std::byte> chunk;
  for (const kernels::DeviceArray& array : model.device_weights())
    lines +=
        fmt::format("{} {:016x}\n", array.name, HashOfArray(array, model.device(), &chunk, memory));
  return lines;
}

std::string ChecksumsOf(Model& model, SymmetricMemory& memory) {
  const auto weights = model.weights();  // null on GPUs
  return weights ? ChecksumsOf(*weights, memory) : ChecksumsOnDevice(model, memory);
}

// The texts of all ranks, by rank. Collective.
std::vector<std::string> GatherTexts(const std::string& mine, Communicator& group) {
  const size_t size = mine.size();
  std::vector<size_t> sizes(group.size());
  group.AllGather(&size, sizes.data(), sizeof size);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '\0');
  group.AllGatherV(mine.data(), all.data(), sizes);
  std::vector<std::string> texts;
  for (size_t begin = 0; const size_t part : sizes) {
    texts.push_back(all.substr(begin, part));
    begin += part;
  }
  return texts;
}

}  // namespace

std::vector<EngineMessage> ApplyToWeights(const std::vector<ControlMessage>& messages, Model* model,
                                          RankComm& comm) {
  std::vector<EngineMessage> answers;
  for (const ControlMessage& message : messages) {
    const auto* check = std::get_if<GetWeightChecksums>(&message);
    if (!check) continue;
    WeightChecksums sums{.ticket = check->ticket};
    if (comm.mesh.pp() > 1) {
      sums.error = "weights of several pipeline stages (--pp-size) cannot be checked";
    } else if (model == nullptr || model->movable_experts() != nullptr) {
      sums.error = "weights cannot be checked with --enable-eplb, where experts move";
    } else {
      sums.ranks = GatherTexts(ChecksumsOf(*model, *comm.memory), *comm.tp);
    }
    if (comm.mesh.rank() == 0) answers.emplace_back(std::move(sums));
  }
  return answers;
}

}  // namespace switchyard
