#include "engine/kv_transfer/kv_rows.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "core/format.h"
#include "engine/kept_pages.h"
#include "kernels/cache_rows.h"
#include "kernels/compressed.h"

namespace switchyard {
namespace {

void CheckPages(const KvLayerRows& rows, int64_t begin, int64_t end) {
  if (begin < rows.first || begin > end ||
      end - rows.first > std::ssize(rows.pages) * rows.page_size)
    throw Invalid("positions {} to {} of the KV cache are not in its {} pages of {}", begin, end,
                  rows.pages.size(), rows.page_size);
  for (int64_t page = (begin - rows.first) / rows.page_size;
       page * rows.page_size < end - rows.first; ++page)
    if (rows.pages[page] < 0 || rows.pages[page] >= rows.num_pages)
      throw Invalid("page {} is not one of the {} pages of the KV cache", rows.pages[page],
                    rows.num_pages);
}

// Calls `visit` with copies of the heads that both shards have.
template <typename Visit>
void VisitShard(const KvShard& from, const KvLayerRows& source, const KvShard& to,
                const KvLayerRows& target, int64_t begin, int64_t end, int64_t bytes, bool keys,
                const Visit& visit) {
  const int64_t first = std::max(from.heads.begin, to.heads.begin);
  const int64_t heads = std::min(from.heads.end, to.heads.end) - first;
  if (heads <= 0) return;
  const std::byte* const read = keys ? from.keys : from.values;
  std::byte* const write = keys ? to.keys : to.values;
  const auto slot = [](const KvLayerRows& rows, int64_t position) {
    const int64_t i = position - rows.first;
    return rows.pages[i / rows.page_size] * rows.page_size + i % rows.page_size;
  };
  const auto left = [](const KvLayerRows& rows, int64_t position) {  // positions in its page
    return rows.page_size - (position - rows.first) % rows.page_size;
  };
  const bool whole = heads == from.heads.size() && heads == to.heads.size();
  for (int64_t position = begin; position < end;) {
    // The positions that are contiguous in both pages.
    const int64_t run = std::min({end - position, left(source, position), left(target, position)});
    KvCopy copy{
        .to = write + (slot(target, position) * to.heads.size() + first - to.heads.begin) * bytes,
        .from =
            read + (slot(source, position) * from.heads.size() + first - from.heads.begin) * bytes,
        .bytes = heads * bytes};
    if (whole) {
      copy.bytes *= run;
    } else {
      copy.rows = run;
      copy.to_stride = to.heads.size() * bytes;
      copy.from_stride = from.heads.size() * bytes;
    }
    visit(copy);
    position += run;
  }
}

template <typename Visit>
void VisitRows(const KvLayerFormat& format, const KvLayerRows& from, const KvLayerRows& to,
               int64_t begin, int64_t end, const Visit& visit) {
  for (const KvShard& target : to.shards) {
    int64_t next = target.heads.begin;  // the first head that has not been copied
    for (const KvShard& source : from.shards) {
      if (source.heads.begin > next || source.heads.end <= next) continue;
      VisitShard(source, from, target, to, begin, end, format.key_bytes, /*keys=*/true, visit);
      if (format.value_bytes > 0)
        VisitShard(source, from, target, to, begin, end, format.value_bytes, /*keys=*/false, visit);
      next = source.heads.end;
    }
    CHECK_GE(next, target.heads.end);
  }
}

}  // namespace

KvFormat KvFormat::Of(const ModelConfig& model, DType dtype) {
  const AttentionConfig& a = model.attention;
  const bool latent = a.kind == AttentionConfig::Kind::kLatent;
  KvFormat format{.dtype = dtype};
  if (model.has_linear()) format.states.linear = model.linear;
  if (model.has_entries()) {
    format.states.whole_floats = StateStorage::SlotFloats(model, Mesh());  // as on each mesh
    format.shared_rows = kernels::kEntrySlots;
  }
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const int64_t state_heads = model.layers[layer].has_state() ? format.states.heads() : 0;
    const int64_t state_bytes = state_heads > 0 ? format.states.HeadBytes() : 0;
    if (model.layers[layer].linear) {
      format.layers.push_back({.state_heads = state_heads, .state_bytes = state_bytes});
    } else if (a.kind == AttentionConfig::Kind::kCompressed) {
      const KvRowBytes row = KvStorage::RowBytes(model, layer, Mesh(), dtype);
      format.layers.push_back({.heads = 1,
                               .key_bytes = row.k,
                               .value_bytes = row.v,
                               .state_heads = state_heads,
                               .state_bytes = state_bytes});
    } else if (!model.layers[layer].attends()) {
      format.layers.emplace_back();
    } else if (latent) {
      KvLayerFormat& rows = format.layers.emplace_back();
      rows.heads = 1;
      rows.key_bytes = kernels::CacheRowBytes(dtype, a.kv_lora_rank + a.qk_rope_head_dim);
      if (model.has_indexer(layer))
        rows.value_bytes = kernels::CacheRowBytes(dtype, a.index_head_dim);
    } else {
      format.layers.push_back({.heads = model.kv_heads(layer),
                               .key_bytes = kernels::CacheRowBytes(dtype, a.head_dim),
                               .value_bytes = kernels::CacheRowBytes(dtype, a.value_dim())});
    }
  }
  return format;
}

KvFormat KvFormat::Of(const EnginePlan& plan) {
  KvFormat format = Of(plan.model, plan.kv_dtype);
  if (!plan.draft) return format;
  const KvFormat draft = Of(*plan.draft, plan.kv_dtype);
  format.layers.insert(format.layers.end(), draft.layers.begin(), draft.layers.end());
  return format;
}

int64_t KvFormat::LargestPosition() const {
  int64_t largest = 0;
  for (const KvLayerFormat& layer : layers) largest = std::max(largest, layer.Bytes(1));
  return largest;
}

std::string KvFormat::Text() const {
  std::vector<std::string> runs;
  for (auto begin = layers.begin(); begin != layers.end();) {
    const auto end = std::find_if(begin, layers.end(),
                                  [&](const KvLayerFormat& layer) { return layer != *begin; });
    std::vector<std::string> what;
    if (begin->heads > 0)
      what.push_back(fmt::format("{} heads of {} + {} bytes", begin->heads, begin->key_bytes,
                                 begin->value_bytes));
    if (begin->state_heads > 0)
      what.push_back(
          fmt::format("states of {} heads of {} bytes", begin->state_heads, begin->state_bytes));
    if (what.empty()) what.emplace_back("without rows");
    runs.push_back(fmt::format("{} layer{}, {}", end - begin, end - begin == 1 ? "" : "s",
                               Joined(what, " and ")));
    begin = end;
  }
  return fmt::format("{} ({})", Joined(runs, ", then "), Name(dtype));
}

void CopyKvRows(const KvLayerFormat& format, const KvLayerRows& from, const KvLayerRows& to,
                int64_t begin, int64_t end, KvMover* mover) {
  CheckPages(from, begin, end);
  CheckPages(to, begin, end);
  if (!mover)
    return VisitRows(format, from, to, begin, end, [](const KvCopy& copy) { copy.Run(); });
  // Adjacent pages are often adjacent in both caches, and a copy of a GPU costs about as much time
  // as a few KiB.
  std::vector<KvCopy> copies;
  VisitRows(format, from, to, begin, end, [&](const KvCopy& copy) {
    if (copies.empty() || !copies.back().Append(copy)) copies.push_back(copy);
  });
  mover->Copy(copies);
}

KvCaches::KvCaches(const EngineConfig& config, const EnginePlan& plan,
                   const std::vector<std::span<std::byte>>& kept)
    : format_(KvFormat::Of(plan)),
      mesh_(config.mesh),
      num_pages_(plan.num_pages),
      page_size_(config.page_size),
      num_states_(plan.num_states),
      bell_(KeptPages::Bell(kept.at(0))) {
  CHECK_EQ(std::ssize(kept), mesh_.world());
  for (int stage = 0; stage < mesh_.pp; ++stage)
    stage_layers_.push_back(StagePlanOf(config, plan, stage).model.num_layers());
  for (const std::span<std::byte> memory : kept) progress_.push_back(KeptPages::Progress(memory));
  if (plan.draft) draft_layers_ = plan.draft->num_layers();
  if (!plan.cuda) Attach(config, plan, kept);
}

void KvCaches::Attach(const EngineConfig& config, const EnginePlan& plan,
                      const std::vector<std::span<std::byte>>& caches) {
  CHECK_EQ(std::ssize(caches), mesh_.world());
  CHECK(storages_.empty());
  std::vector<EnginePlan> stages;
  stages.reserve(mesh_.pp);
  for (int stage = 0; stage < mesh_.pp; ++stage) stages.push_back(StagePlanOf(config, plan, stage));
  for (int rank = 0; rank < mesh_.world(); ++rank) {
    const Mesh mesh(mesh_, rank);
    const EnginePlan& own = stages[mesh.pp_rank()];
    storages_.push_back(KeptPages::Storage(caches[rank], config, own, mesh));
    states_.push_back(KeptPages::States(caches[rank], config, own, mesh));
    if (own.draft) drafts_.push_back(KeptPages::DraftStorage(caches[rank], config, own, mesh));
  }
  for (int group = 0; group < mesh_.dp; ++group) {
    for (int stage = 0; stage < mesh_.pp; ++stage)
      AddShards(stages[stage].model, group, stage,
                std::span(storages_).subspan(stage * mesh_.tp, mesh_.tp));
    if (plan.draft) AddShards(*plan.draft, group, mesh_.pp - 1, drafts_);
  }
}

Range KvCaches::RanksOf(int group, int stage) const {
  const int ranks = mesh_.tp / mesh_.dp, first = stage * mesh_.tp + group * ranks;
  return {first, first + ranks};
}

void KvCaches::AddShards(const ModelConfig& model, int group, int stage,
                         std::span<KvStorage> storages) {
  const bool shared = model.attention.kind != AttentionConfig::Kind::kGrouped;
  const Range ranks = RanksOf(group, stage);
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const auto index = shards_.size() % static_cast<size_t>(format_.num_layers());
    const bool values = format_.layers[index].value_bytes > 0;
    std::vector<KvShard>& shards = shards_.emplace_back();
    std::vector<StateShard>& states = state_shards_.emplace_back();
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
      if (model.layers[layer].has_state()) states.push_back(StateOf(model, layer, rank));
      if (!model.layers[layer].attends()) continue;
      KvStorage& storage = storages[rank - int64_t{stage} * mesh_.tp];
      const Mesh mesh(mesh_, static_cast<int>(rank));
      const Range heads = shared ? Range{0, 1} : KvHeads(model, layer, mesh);
      shards.push_back({static_cast<std::byte*>(storage.k(layer).mutable_raw()),
                        values ? static_cast<std::byte*>(storage.v(layer).mutable_raw()) : nullptr,
                        heads});
    }
  }
}

KvCaches::StateShard KvCaches::StateOf(const ModelConfig& model, int64_t layer, int64_t rank) {
  StateStorage& storage = states_[rank];
  const Mesh mesh(mesh_, static_cast<int>(rank));
  return {.first = {.inputs = storage.inputs(layer),
                    .heads = storage.heads(layer),
                    .key_heads = model.layers[layer].linear ? LinearKeyHeads(*model.linear, mesh)
                                                            : Range{0, 1}},
          .slot_floats = storage.slot_floats()};
}

std::vector<KvStateShard> KvCaches::State(int group, int64_t layer, int32_t slot) const {
  CHECK(group >= 0 && group < groups() && layer >= 0 && layer < format_.num_layers());
  if (slot < 0 || slot >= num_states_)
    throw Invalid("slot {} is not one of the {} slots of recurrent states", slot, num_states_);
  std::vector<KvStateShard> shards;
  for (const StateShard& shard : state_shards_[group * format_.num_layers() + layer])
    shards.push_back({.inputs = shard.first.inputs + slot * shard.slot_floats,
                      .heads = shard.first.heads + slot * shard.slot_floats,
                      .key_heads = shard.first.key_heads});
  return shards;
}

KvLayerRows KvCaches::Layer(int group, int64_t layer, std::span<const int32_t> pages) const {
  CHECK(group >= 0 && group < groups() && layer >= 0 && layer < format_.num_layers());
  CHECK(!storages_.empty());  // attached
  return {.shards = shards_[group * format_.num_layers() + layer],
          .pages = pages,
          .page_size = page_size_,
          .num_pages = num_pages_};
}

int64_t KvCaches::LayersOf(int group, uint64_t pass) const {
  int64_t layers = 0;
  for (int stage = 0; stage < mesh_.pp; ++stage) {
    const Range ranks = RanksOf(group, stage);
    // Before its next pass, the last stage has run the draft model too.
    const bool last = stage + 1 == mesh_.pp;
    const int64_t later = mesh_.pp == 1 ? 0 : stage_layers_[stage] + (last ? draft_layers_ : 0);
    int64_t of_stage = std::max(later, stage_layers_[stage]);
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank)
      of_stage = std::min(of_stage, progress_[rank].LayersOf(pass, later));
    layers += of_stage;
    if (of_stage < stage_layers_[stage]) break;
  }
  return layers;
}

void KvCaches::ClearFaults(int group, std::span<const int32_t> pages, int64_t begin, int64_t end,
                           KvMover* mover) {
  std::vector<std::span<std::byte>> on_gpus;
  size_t of_rank = 0;  // the first part of the present rank: ranks have separate allocations
  const auto clear = [&](std::span<std::byte> slots) {
    if (!mover) {
      std::ranges::fill(slots, std::byte{0});
    } else if (on_gpus.size() > of_rank &&
               on_gpus.back().data() + on_gpus.back().size() == slots.data()) {
      on_gpus.back() = {on_gpus.back().data(), on_gpus.back().size() + slots.size()};
    } else {
      on_gpus.push_back(slots);
    }
  };
  for (int stage = 0; stage < mesh_.pp; ++stage) {
    const Range ranks = RanksOf(group, stage);
    for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
      int32_t* const faults = storages_[rank].router_faults();
      if (faults == nullptr) continue;
      of_rank = on_gpus.size();
      for (int64_t position = begin; position < end;) {
        const int64_t page = pages[position / page_size_], first = position % page_size_;
        CHECK(page >= 0 && page < num_pages_);
        const int64_t count = std::min(end - position, page_size_ - first);
        const std::span slots(faults + page * page_size_ + first, static_cast<size_t>(count));
        clear(std::as_writable_bytes(slots));
        position += count;
      }
    }
  }
  if (!on_gpus.empty()) mover->Clear(on_gpus);
}

CanonicalRows::CanonicalRows(const KvLayerFormat& format, int64_t begin, int64_t end,
                             std::span<std::byte> memory)
    : begin_(begin), count_(end - begin) {
  CHECK_GE(std::ssize(memory), format.Bytes(count_));
  shard_ = {.keys = memory.data(),
            .values = format.value_bytes > 0
                          ? memory.data() + count_ * format.heads * format.key_bytes
                          : nullptr,
            .heads = {0, format.heads}};
}

KvLayerRows CanonicalRows::rows() const {
  static constexpr int32_t kOnlyPage = 0;
  return {.shards = {&shard_, 1},
          .pages = {&kOnlyPage, 1},
          .page_size = std::max<int64_t>(count_, 1),
          .num_pages = 1,
          .first = begin_};
}

}  // namespace switchyard
