#include "model/weights/placing.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/device_store.h"
#include "core/format.h"
#include "kernels/fused_ops.h"
#include "model/weights/named_weights.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

void Place(kernels::Device& device, Tensor& t) {
  if (t.defined()) t = device.Place(t);
}
void Place(kernels::Device& device, WeightView& w) {
  if (w.defined()) w = device.Place(w);
}
void Place(kernels::Device& device, LinearWeight& linear) {
  Place(device, linear.w);
  Place(device, linear.bias);
}

// Concatenates the biases of all parts. Returns false if only some have one.
bool JoinBiases(std::span<const LinearWeight* const> parts, Tensor* joined) {
  int64_t size = 0;
  for (const LinearWeight* part : parts) {
    if (part->bias.defined() != parts[0]->bias.defined()) return false;
    size += part->w.n;
  }
  if (!parts[0]->bias.defined()) return true;
  *joined = Tensor::Empty(DType::kF32, {size});
  auto* to = static_cast<float*>(joined->mutable_raw());
  for (const LinearWeight* part : parts) {
    std::memcpy(to, part->bias_data(), part->w.n * sizeof(float));
    to += part->w.n;
  }
  return true;
}

// Stacks placed matrices into one, of whose rows they are views then. Returns an undefined view if
// the device does not support it.
WeightView Stack(kernels::Device& device, std::span<LinearWeight* const> parts) {
  std::vector<WeightView> views;
  views.reserve(parts.size());
  for (const LinearWeight* part : parts) views.push_back(part->w);
  WeightView all = device.fused()->ConcatenateRows(views);
  if (!all.defined()) return {};
  int64_t row = 0;
  for (LinearWeight* part : parts) {
    const int64_t end = row + part->w.n;
    part->w = all.Rows(row, end);
    row = end;
  }
  return all;
}

// Places the projections of linear attention. Returns them as one, which is undefined if there is
// only one of them, or if the device does not stack them.
LinearWeight PlaceAndStack(kernels::Device& device, std::vector<LinearWeight>& parts) {
  LinearWeight stacked;
  std::vector<LinearWeight*> all;
  all.reserve(parts.size());
  for (LinearWeight& part : parts) all.push_back(&part);
  const bool joins = device.fused() && parts.size() > 1 && JoinBiases(all, &stacked.bias);
  for (LinearWeight& part : parts) Place(device, part);
  if (joins) stacked.w = Stack(device, all);
  if (!stacked.w.defined()) return {};
  Place(device, stacked.bias);
  return stacked;
}

// Without a gate (kernels::Activation::kRelu2), gate and up are one matrix.
void PlaceFeedForward(kernels::Device& device, kernels::ExpertWeights& w) {
  const bool gated =
      w.gate.data != w.up.data || w.gate.row0 != w.up.row0 || w.gate.row_step != w.up.row_step;
  Place(device, w.up);
  Place(device, w.down);
  if (gated) {
    Place(device, w.gate);
  } else {
    w.gate = w.up;
  }
}

void Place(kernels::Device& device, EntryWeights& w) {
  Place(device, w.rows);
  Place(device, w.gates);
  Place(device, w.bias);
  Place(device, w.norm);
}

// Views of the same stored matrix, each in a copy of its own. The shard of one may start inside a
// block of scales, and the shard of another at a block's start. Ops need one format for all.
void PlacePlain(kernels::Device& device, std::vector<WeightView>& views) {
  for (WeightView& w : views) w = device.Place(w, /*plain=*/true);
}

void Place(kernels::Device& device, CompressedAttentionWeights& w) {
  for (LinearWeight* linear : {&w.q_a, &w.q_b, &w.kv, &w.o, &w.index_q}) Place(device, *linear);
  for (Tensor* t : {&w.q_a_norm, &w.q_norm, &w.kv_norm, &w.sinks}) Place(device, *t);
  PlacePlain(device, w.o_a);
  Place(device, w.index_weights);
  if (w.entries) Place(device, *w.entries);
  if (w.index_entries) Place(device, *w.index_entries);
}

void Place(kernels::Device& device, HiddenInputWeights& w) {
  Place(device, w.embedding_norm);
  Place(device, w.hidden_norm);
  Place(device, w.projection);
  Place(device, w.embedding_projection);
}

// GPUs round the rows of products with narrower weights, but the weights of residual streams are
// computed from unrounded rows. So the matrix becomes float32.
void Place(kernels::Device& device, StreamWeights& w) {
  if (!w.logits.defined()) return;
  const auto values =
      std::make_shared<std::vector<float>>(static_cast<size_t>(w.logits.n * w.logits.k));
  for (int64_t row = 0; row < w.logits.n; ++row)
    DequantizeRow(w.logits, row, 0, w.logits.k, values->data() + row * w.logits.k);
  w.logits = device.Place({.format = WeightFormat::kF32,
                           .data = values->data(),
                           .stored_k = w.logits.k,
                           .n = w.logits.n,
                           .k = w.logits.k,
                           .owner = values});
  Place(device, w.base);
  Place(device, w.scale);
}

// Collects arrays in the formats of a GPU (kernels::GpuFormat).
class ArrayList {
 public:
  void Add(const std::string& name, const Tensor& t) {
    if (t.defined()) arrays_.push_back({name, t.raw(), static_cast<int64_t>(t.num_bytes())});
  }
  void Add(const std::string& name, const WeightView& w) {
    if (!w.defined()) return;
    // Placed matrices are compact. Only rows of a stacked matrix begin at another row.
    CHECK(w.col0 == 0 && w.row_step == 1 && w.stored_k == w.k);
    const bool blocks = w.format == WeightFormat::kFp8Block;
    const int64_t row_bytes = w.k * (w.format == WeightFormat::kF32 ? 4 : blocks ? 1 : 2);
    AddPart(name, w.data, w.row0 * row_bytes, w.n * row_bytes);
    if (!blocks) return;
    const int64_t scale_row_bytes = CeilDiv(w.k, kFp8BlockSize) * int64_t{sizeof(float)};
    AddPart(name + ".scales", w.scales, w.row0 / kFp8BlockSize * scale_row_bytes,
            CeilDiv(w.n, kFp8BlockSize) * scale_row_bytes);
  }
  void Add(const std::string& name, const LinearWeight& linear) {
    Add(name, linear.w);
    Add(name + ".bias", linear.bias);
  }
  std::vector<kernels::DeviceArray> Take() { return std::move(arrays_); }

 private:
  void AddPart(std::string name, const void* data, int64_t offset, int64_t bytes) {
    arrays_.push_back({std::move(name), static_cast<const std::byte*>(data) + offset, bytes});
  }

  std::vector<kernels::DeviceArray> arrays_;
};

}  // namespace

void UploadWeights(kernels::Device& device, ModelWeights& weights) {
  if (device.is_cpu()) return;
  // A tied head consists of rows of the embedding. Head and embedding are placed separately,
  // because their shards may differ.
  Place(device, weights.embedding);
  Place(device, weights.head);
  Place(device, weights.head_bias);
  Place(device, weights.final_norm);
  for (ModelWeights::Depth& depth : weights.later_depths) {
    Place(device, depth.hidden_input);
    Place(device, depth.final_norm);
  }
  if (weights.hidden_input) Place(device, *weights.hidden_input);
  Place(device, weights.head_streams);
  for (LayerWeights& layer : weights.layers) {
    GroupedAttentionWeights& grouped = layer.grouped;
    const LinearWeight* const qkv[] = {&grouped.q, &grouped.k, &grouped.v};
    const bool joins =
        device.fused() && grouped.q.w.defined() && JoinBiases(qkv, &grouped.qkv.bias);
    Place(device, grouped.qkv.bias);
    for (Tensor* t : {&layer.input_norm,
                      &layer.post_attention_norm,
                      &layer.attention_output_norm,
                      &layer.feed_forward_output_norm,
                      &layer.grouped.q_norm,
                      &layer.grouped.k_norm,
                      &layer.grouped.sinks,
                      &layer.grouped.k_scales,
                      &layer.grouped.v_scales,
                      &layer.latent.q_a_norm,
                      &layer.latent.kv_a_norm,
                      &layer.latent.cache_scale,
                      &layer.linear.conv,
                      &layer.linear.conv_bias,
                      &layer.linear.rate,
                      &layer.linear.bias,
                      &layer.linear.skip,
                      &layer.linear.norm,
                      &layer.linear.q_norm,
                      &layer.linear.k_norm})
      Place(device, *t);
    for (LinearWeight* w :
         {&layer.grouped.q, &layer.grouped.k, &layer.grouped.v, &layer.grouped.o,
          &layer.grouped.gate, &layer.latent.q, &layer.latent.q_a, &layer.latent.q_b,
          &layer.latent.kv_a, &layer.latent.o, &layer.latent.gate, &layer.linear.o,
          &layer.linear.low_a, &layer.linear.low_z, &layer.latent_in, &layer.latent_out})
      Place(device, *w);
    for (LinearWeight& w : layer.linear.low_in) Place(device, w);
    if (joins) {
      LinearWeight* const parts[] = {&grouped.q, &grouped.k, &grouped.v};
      grouped.qkv.w = Stack(device, parts);
    }
    layer.linear.stacked_in = PlaceAndStack(device, layer.linear.in);
    layer.linear.stacked_gates = PlaceAndStack(device, layer.linear.gates);
    if (layer.latent.index) {
      IndexWeights& index = *layer.latent.index;
      Place(device, index.q);
      Place(device, index.k);
      Place(device, index.k_norm);
      Place(device, index.weights);
    }
    PlacePlain(device, layer.latent.k_up);
    PlacePlain(device, layer.latent.v_up);
    Place(device, layer.compressed);
    Place(device, layer.attention_streams);
    Place(device, layer.feed_forward_streams);
    PlaceFeedForward(device, layer.dense);
  }
}

PlacingInStore::PlacingInStore(kernels::Device& device, DeviceStore* store)
    : device_(device), store_(store) {
  if (!store_) return;
  store_->Begin();
  device_.SetWeightStore(store_);
}

PlacingInStore::~PlacingInStore() {
  if (store_) device_.SetWeightStore(nullptr);
}

void PlacingInStore::Finish() {
  if (!store_) return;
  device_.SetWeightStore(nullptr);
  device_.Synchronize();
  std::exchange(store_, nullptr)->Finish();
}

std::shared_ptr<const ModelWeights> CopyToKeep(const ModelWeights& weights, bool movable) {
  auto kept = std::make_shared<ModelWeights>(weights);
  for (LayerWeights& layer : kept->layers) {
    if (!movable) break;
    layer.moe.experts.clear();
    layer.moe.owners.clear();
  }
  return kept;
}

void ShareVocabulary(const EagleConfig& eagle, bool reduced_head, const ModelWeights* target,
                     ModelWeights* weights) {
  const bool shares = !eagle.own_embedding || !eagle.own_head;
  CHECK(!shares || target != nullptr);
  if (!shares) return;
  if (!eagle.own_embedding) weights->embedding = target->embedding;
  if (eagle.own_head || reduced_head) return;
  weights->head = target->head;
  weights->head_bias = target->head_bias;
}

std::vector<kernels::DeviceArray> PlacedArrays(const ModelWeights& weights) {
  ArrayList list;
  list.Add("embedding", weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& layer = weights.layers[i];
    const std::string name = fmt::format("layers.{}.", i);
    list.Add(name + "input_norm", layer.input_norm);
    list.Add(name + "post_attention_norm", layer.post_attention_norm);
    list.Add(name + "attention_output_norm", layer.attention_output_norm);
    list.Add(name + "feed_forward_output_norm", layer.feed_forward_output_norm);
    AddAttention(name + "attention.", layer, &list);
    // Stacked matrices have the rows of their parts; only their biases are arrays of their own.
    list.Add(name + "attention.qkv.bias", layer.grouped.qkv.bias);
    list.Add(name + "attention.in.bias", layer.linear.stacked_in.bias);
    list.Add(name + "attention.gates.bias", layer.linear.stacked_gates.bias);
    AddStreams(name + "attention_streams.", layer.attention_streams, &list);
    AddStreams(name + "feed_forward_streams.", layer.feed_forward_streams, &list);
    list.Add(name + "latent_in", layer.latent_in);
    list.Add(name + "latent_out", layer.latent_out);
    list.Add(name + "dense.gate", layer.dense.gate);
    list.Add(name + "dense.up", layer.dense.up);
    list.Add(name + "dense.down", layer.dense.down);
  }
  AddStreams("head_streams.", weights.head_streams, &list);
  list.Add("final_norm", weights.final_norm);
  list.Add("head", weights.head);
  list.Add("head_bias", weights.head_bias);
  return list.Take();
}

}  // namespace switchyard
