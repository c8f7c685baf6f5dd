// Implements ExpertRecorder::Dump: gathers the records of all ranks and writes them.

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <tuple>

#include "core/error.h"
#include "core/safetensors_writer.h"
#include "eplb/recorder.h"

namespace switchyard {
namespace {

// Concatenates the ranks' values; `sizes` [ranks] receives the number of values of each rank.
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

struct Tokens {  // tokens of all ranks, ordered by step, attention group and row
  std::vector<int32_t> step, positions, topk_ids;
  std::vector<int64_t> request_ids;
};

// Data gathered on rank 0. If rank 0 runs out of memory, it still takes part in the collectives,
// because the other ranks wait for it. The data is then dropped, and `error` has the reason.
struct Kept {
  std::vector<int64_t> passes;
  std::vector<int32_t> count, rank_count;
  Tokens tokens;
  std::string error;

  void Try(const std::function<void()>& body) {
    if (!error.empty()) return;
    try {
      body();
    } catch (const std::exception& what) {
      *this = {.error = fmt::format("not enough memory to gather the records: {}", what.what())};
    }
  }
};

// The tokens of one step, gathered from all ranks, with the attention groups of the rows. Tokens
// are ordered by group and row. `width`: elements of a row of topk_ids.
struct Gathered {
  std::vector<int> group;
  std::vector<int32_t> rows, positions, topk_ids;
  std::vector<int64_t> request_ids;

  // Each pipeline stage has recorded its own layers of a token. Merges these records into one.
  void MergeStages(size_t width) {
    size_t kept = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto from = topk_ids.begin() + static_cast<std::ptrdiff_t>(i * width);
      const bool again = kept > 0 && group[kept - 1] == group[i] && rows[kept - 1] == rows[i];
      if (!again) ++kept;
      const size_t at = kept - 1;
      const auto to = topk_ids.begin() + static_cast<std::ptrdiff_t>(at * width);
      if (again) {  // −1 in the layers of other stages
        std::transform(from, from + static_cast<std::ptrdiff_t>(width), to, to,
                       [](int32_t a, int32_t b) { return std::max(a, b); });
        continue;
      }
      if (at == i) continue;
      std::copy_n(from, width, to);
      group[at] = group[i];
      rows[at] = rows[i];
      positions[at] = positions[i];
      request_ids[at] = request_ids[i];
    }
    group.resize(kept);
    rows.resize(kept);
    positions.resize(kept);
    request_ids.resize(kept);
    topk_ids.resize(kept * width);
  }
};

// Gathers the tokens of the step with index `index` on rank 0. Collective.
void GatherTokens(const RecordedStep& recorded, int32_t index, size_t width, RankComm& comm,
                  Kept* kept) {
  std::vector<size_t> ignored, of_rank;
  const auto topk_ids = Gather(comm.all(), recorded.topk_ids, &ignored);
  const auto positions = Gather(comm.all(), recorded.positions, &ignored);
  const auto request_ids = Gather(comm.all(), recorded.request_ids, &ignored);
  const auto rows = Gather(comm.all(), recorded.rows, &of_rank);
  if (comm.mesh.rank() != 0) return;
  kept->Try([&] {
    std::vector<int> group;
    for (int rank = 0; rank < comm.mesh.world(); ++rank)
      group.insert(group.end(), of_rank[rank], rank % comm.mesh.tp() / comm.mesh.attn_tp());
    std::vector<size_t> order(rows.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return std::tuple(group[i], rows[i]); });
    Gathered sorted{.group = Permuted(group, order),
                    .rows = Permuted(rows, order),
                    .positions = Permuted(positions, order),
                    .topk_ids = Permuted(topk_ids, order, width),
                    .request_ids = Permuted(request_ids, order)};
    if (comm.mesh.pp() > 1) sorted.MergeStages(width);
    Tokens& all = kept->tokens;
    all.step.insert(all.step.end(), sorted.rows.size(), index);
    Append(&all.positions, sorted.positions);
    Append(&all.request_ids, sorted.request_ids);
    Append(&all.topk_ids, sorted.topk_ids);
  });
}

std::filesystem::path NewFile(const std::filesystem::path& dir) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return dir / fmt::format("expert_distribution_recorder_{}.safetensors",
                           std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

ExpertDump ExpertRecorder::Dump() {
  if (options_.mode.empty())
    throw Invalid(
        "recording experts requires --expert-distribution-recorder-mode: want stat, stat_approx, "
        "per_pass or per_token");
  ExpertDump dump = WriteDump();
  const bool is_leader = comm_.mesh.rank() == 0;
  // This broadcast has no timeout, because rank 0 may write to a slow disk, which must not end the
  // server.
  const std::string failed =
      comm_.all().Broadcast(is_leader && !dump.error.empty() ? "failed" : "", /*idle=*/true);
  if (failed.empty()) steps_.Clear();
  return dump;
}

ExpertDump ExpertRecorder::WriteDump() {
  const int64_t width = int64_t{shape_.layers} * shape_.experts, world = comm_.mesh.world();
  const int64_t num_steps = std::ssize(steps_.steps());
  const bool is_leader = comm_.mesh.rank() == 0, by_rank = options_.mode == "per_pass";
  ExpertDump dump{.steps = num_steps, .layers = shape_.layers, .experts = shape_.experts};
  dump.logical_count.resize(width);
  std::vector<int32_t> gathered(width * world);
  Kept kept;
  for (int64_t i = 0; i < num_steps; ++i) {
    const RecordedStep& step = steps_.steps()[i];
    comm_.all().AllGather(step.logical.data(), gathered.data(), width * sizeof(int32_t));
    if (is_leader) {
      kept.Try([&] {
        kept.passes.push_back(step.pass);
        kept.count.resize(kept.count.size() + width);
        for (int64_t j = 0; j < width * world; ++j) {
          kept.count[kept.count.size() - width + j % width] += gathered[j];
          dump.logical_count[j % width] += gathered[j];
        }
        if (by_rank) Append(&kept.rank_count, gathered);
      });
    }
    if (by_token_)
      GatherTokens(step, static_cast<int32_t>(i), size_t(shape_.layers) * shape_.top_k, comm_,
                   &kept);
  }
  // A rank knows the placement of its stage, and has −1 elsewhere.
  std::vector<int32_t> all_slots(slots_->size() * static_cast<size_t>(world));
  comm_.all().AllGather(slots_->data(), all_slots.data(), slots_->size() * sizeof(int32_t));
  if (!is_leader) return {};
  std::vector<int32_t> slots(slots_->size(), -1);
  for (size_t i = 0; i < all_slots.size(); ++i)
    slots[i % slots.size()] = std::max(slots[i % slots.size()], all_slots[i]);
  if (!kept.error.empty()) {
    dump.error = kept.error;
    return dump;
  }

  const int64_t placed = shape_.experts + shape_.redundant;
  SafetensorsWriter writer;
  std::vector<int32_t> map;
  for (int64_t layer = 0; layer < shape_.layers; ++layer)
    map.insert(map.end(), slots.begin() + layer * physical_,
               slots.begin() + layer * physical_ + placed);
  const auto view = [&](const char* name, DType dtype, std::vector<int64_t> shape,
                        const auto& values) {
    writer.AddView(name, dtype, std::move(shape), values.data());
  };
  view("logical_count", DType::kI32, {num_steps, shape_.layers, shape_.experts}, kept.count);
  view("forward_pass_id", DType::kI64, {num_steps}, kept.passes);
  writer.Add("physical_to_logical", {shape_.layers, placed}, map);
  if (by_rank)
    view("rank_logical_count", DType::kI32, {num_steps, world, shape_.layers, shape_.experts},
         kept.rank_count);
  if (by_token_) {
    const Tokens& tokens = kept.tokens;
    const auto n = std::ssize(tokens.step);
    view("token_step", DType::kI32, {n}, tokens.step);
    view("positions", DType::kI32, {n}, tokens.positions);
    view("request_ids", DType::kI64, {n}, tokens.request_ids);
    view("topk_ids", DType::kI32, {n, shape_.layers, shape_.top_k}, tokens.topk_ids);
  }
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
  } catch (const std::exception& error) {  // a lack of memory or disk must not end the server
    dump.error = error.what();
  }
  return dump;
}

}  // namespace switchyard
