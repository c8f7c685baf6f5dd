// ExpertRecorder::Dump: what ranks remember, brought together and written.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "core/safetensors_writer.h"
#include "eplb/recorder.h"

namespace switchyard {
namespace {

// The ranks' values, one after the other; `sizes` [ranks] gets how many each has.
template <typename T>
std::vector<T> Gather(Communicator& group, const std::vector<T>& mine, std::vector<size_t>* sizes) {
  sizes->resize(group.size());
  const size_t bytes = mine.size() * sizeof(T);
  group.AllGather(&bytes, sizes->data(), sizeof bytes);
  std::vector<T> all(std::accumulate(sizes->begin(), sizes->end(), size_t{0}) / sizeof(T));
  if (!all.empty()) group.AllGatherV(mine.data(), all.data(), *sizes);
  for (size_t& size : *sizes) size /= sizeof(T);
  return all;
}

template <typename T>
void Append(std::vector<T>* to, const std::vector<T>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

template <typename T>
std::vector<T> Permuted(const std::vector<T>& values, const std::vector<size_t>& order,
                        size_t width = 1) {
  std::vector<T> out;
  out.reserve(values.size());
  for (const size_t i : order)
    out.insert(out.end(), values.begin() + i * width, values.begin() + (i + 1) * width);
  return out;
}

// Collective: the tokens of all ranks, by step, attention group and row.
void AddTokens(const RecordedSteps& steps, const ExpertRecorderShape& shape, RankComm& comm,
               SafetensorsWriter* writer) {
  std::vector<int32_t> step, rows, positions, topk_ids;
  std::vector<int64_t> request_ids;
  for (size_t s = 0; s < steps.steps().size(); ++s) {
    const RecordedStep& recorded = steps.steps()[s];
    step.insert(step.end(), recorded.rows.size(), static_cast<int32_t>(s));
    Append(&rows, recorded.rows);
    Append(&positions, recorded.positions);
    Append(&request_ids, recorded.request_ids);
    Append(&topk_ids, recorded.topk_ids);
  }
  std::vector<size_t> ignored, tokens;
  topk_ids = Gather(*comm.tp, topk_ids, &ignored);
  positions = Gather(*comm.tp, positions, &ignored);
  request_ids = Gather(*comm.tp, request_ids, &ignored);
  step = Gather(*comm.tp, step, &ignored);
  rows = Gather(*comm.tp, rows, &tokens);
  if (comm.mesh.rank() != 0) return;

  std::vector<int> group;
  for (int rank = 0; rank < comm.mesh.world(); ++rank)
    group.insert(group.end(), tokens[rank], rank / comm.mesh.attn_tp());
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return std::tuple(step[i], group[i], rows[i]); });
  const auto n = std::ssize(rows);
  writer->Add("token_step", {n}, Permuted(step, order));
  writer->Add("positions", {n}, Permuted(positions, order));
  writer->Add("request_ids", {n}, Permuted(request_ids, order));
  writer->Add("topk_ids", {n, shape.layers, shape.top_k},
              Permuted(topk_ids, order, size_t(shape.layers) * shape.top_k));
}

std::filesystem::path NewFile(const std::filesystem::path& dir) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return dir / fmt::format("expert_distribution_recorder_{}.safetensors",
                           std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

ExpertDump ExpertRecorder::Dump() {
  if (options_.mode.empty())
    throw Invalid("no experts are recorded without --expert-distribution-recorder-mode");
  ExpertDump dump = WriteDump();
  const bool is_leader = comm_.mesh.rank() == 0;
  const std::string failed = comm_.tp->Broadcast(is_leader && !dump.error.empty() ? "failed" : "");
  if (failed.empty()) steps_.Clear();
  return dump;
}

ExpertDump ExpertRecorder::WriteDump() {
  const int64_t width = int64_t{shape_.layers} * shape_.experts, world = comm_.mesh.world();
  const int64_t num_steps = std::ssize(steps_.steps());
  const bool is_leader = comm_.mesh.rank() == 0, by_rank = options_.mode == "per_pass";
  ExpertDump dump{.steps = num_steps, .layers = shape_.layers, .experts = shape_.experts};
  dump.logical_count.resize(width);
  std::vector<int32_t> gathered(width * world), count, rank_count;
  std::vector<int64_t> passes;
  for (const RecordedStep& step : steps_.steps()) {
    comm_.tp->AllGather(step.logical.data(), gathered.data(), width * sizeof(int32_t));
    if (!is_leader) continue;
    passes.push_back(step.pass);
    count.resize(count.size() + width);
    for (int64_t i = 0; i < width * world; ++i) {
      count[count.size() - width + i % width] += gathered[i];
      dump.logical_count[i % width] += gathered[i];
    }
    if (by_rank) Append(&rank_count, gathered);
  }
  SafetensorsWriter writer;
  if (by_token_) AddTokens(steps_, shape_, comm_, &writer);
  if (!is_leader) return {};

  const int64_t placed = shape_.experts + shape_.redundant;
  std::vector<int32_t> map;
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    map.insert(map.end(), physical_to_logical_.begin() + layer * physical_,
               physical_to_logical_.begin() + layer * physical_ + placed);
  writer.Add("logical_count", {num_steps, shape_.layers, shape_.experts}, count);
  writer.Add("forward_pass_id", {num_steps}, passes);
  writer.Add("physical_to_logical", {shape_.layers, placed}, map);
  if (by_rank)
    writer.Add("rank_logical_count", {num_steps, world, shape_.layers, shape_.experts}, rank_count);
  const auto set = [&](const char* key, int64_t value) {
    writer.SetMetadata(key, std::to_string(value));
  };
  writer.SetMetadata("format", "switchyard.expert_distribution.1");
  writer.SetMetadata("mode", options_.mode);
  set("num_steps", num_steps);
  set("num_layers", shape_.layers);
  set("num_logical_experts", shape_.experts);
  set("num_physical_experts", placed);
  set("top_k", shape_.top_k);
  set("ep_size", comm_.mesh.ep());
  set("tp_size", world);
  try {
    const std::filesystem::path file = NewFile(options_.dir);
    writer.Write(file);
    dump.file = file.string();
  } catch (const std::exception& error) {  // not enough memory or disk is no reason to end
    dump.error = error.what();
  }
  return dump;
}

}  // namespace switchyard
