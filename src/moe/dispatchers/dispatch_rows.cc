#include "moe/dispatchers/dispatch_rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "core/check.h"

namespace switchyard {

DispatchRows::DispatchRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan)
    : hidden_(shape.hidden),
      capacity_(capacity),
      format_(shape.row_format),
      row_bytes_(format_.Bytes(hidden_)),
      weights_bytes_(shape.combine_rows == CombineRows::kRank
                         ? shape.k * static_cast<int64_t>(sizeof(float))
                         : 0),
      counts_(plan->Add("counts", sizeof(int32_t) * shape.ep)),
      rows_(plan->Add("rows", static_cast<size_t>(row_bytes_) * shape.ep * capacity)) {
  if (weights_bytes_ > 0)
    weights_ = plan->Add("weights", static_cast<size_t>(weights_bytes_) * shape.ep * capacity);
}

std::byte* DispatchRows::InputRows(ExchangeSlots& slots, Batch* batch) const {
  if (!std::exchange(batch->keeps_slot, false)) slots.Take(&batch->use);
  batch->placed = true;
  return slots.Local(batch->use, RowOffset(slots.rank(), 0));
}

void DispatchRows::Place(ExchangeSlots& slots, const float* x, const TopK& topk, ThreadPool& pool,
                         Batch* batch) const {
  if (!batch->placed) {
    std::byte* rows = InputRows(slots, batch);
    const auto body = [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        StoreRow(format_, x + t * hidden_, hidden_, rows + t * row_bytes_);
    };
    pool.RunRanges(topk.tokens, kRowGrain, std::cref(body));
  }
  batch->placed = false;
  if (weights_bytes_ > 0 && topk.tokens > 0)
    std::memcpy(slots.Local(batch->use, WeightsOffset(slots.rank(), 0)), topk.weights.data(),
                topk.tokens * weights_bytes_);
}

void DispatchRows::Begin(ExchangeSlots& slots, const ExpertMap& experts, const float* x,
                         const TopK& topk, ThreadPool& pool, Batch* batch) const {
  Place(slots, x, topk, pool, batch);
  batch->again = false;
  ComputeLayout(topk, experts, slots, batch);
}

void DispatchRows::BeginAgain(ExchangeSlots& slots, const float* x, const TopK& topk,
                              ThreadPool& pool, Batch* batch) const {
  CHECK_EQ(static_cast<int>(batch->counts.size()), slots.ranks());
  Place(slots, x, topk, pool, batch);
  batch->again = true;
}

void DispatchRows::ComputeLayout(const TopK& topk, const ExpertMap& experts,
                                 const ExchangeSlots& slots, Batch* batch) {
  const int ranks = slots.ranks(), k = topk.k;
  const bool all_active = slots.AllActive();
  batch->owners.assign(topk.ids.size(), -1);
  batch->local_ids.assign(topk.ids.size(), -1);
  batch->counts.assign(ranks, 0);
  batch->order.assign(topk.tokens * ranks, -1);
  for (int64_t t = 0; t < topk.tokens; ++t) {
    for (int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
      const int32_t expert = topk.ids[slot];
      if (expert < 0) continue;
      const int owner = experts.Owner(expert);
      if (!all_active && !slots.Active(owner)) continue;
      batch->owners[slot] = owner;
      batch->local_ids[slot] = experts.LocalId(expert);
      int32_t& order = batch->order[t * ranks + owner];
      if (order < 0) order = batch->counts[owner]++;
    }
  }
}

void DispatchRows::SendTo(ExchangeSlots& slots, const Batch& batch, int dest,
                          ThreadPool& pool) const {
  const int ranks = slots.ranks(), me = slots.rank();
  const auto copy = [&](size_t to, size_t from, int64_t bytes) {
    std::memcpy(slots.At(batch.use, dest, to), slots.Local(batch.use, from), bytes);
  };
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t order = batch.order[t * ranks + dest];
      if (order < 0) continue;
      copy(RowOffset(me, order), RowOffset(me, t), row_bytes_);
      if (weights_bytes_ > 0) copy(WeightsOffset(me, order), WeightsOffset(me, t), weights_bytes_);
    }
  };
  pool.RunRanges(static_cast<int64_t>(batch.order.size()) / ranks, kRowGrain, std::cref(body));
  slots.Wrote(batch.use, dest, RowOffset(me, 0), batch.counts[dest] * row_bytes_);
  slots.Wrote(batch.use, dest, WeightsOffset(me, 0), batch.counts[dest] * weights_bytes_);
}

void DispatchRows::Send(ExchangeSlots& slots, const Batch& batch, ThreadPool& pool) const {
  for (int dest = 0; dest < slots.ranks(); ++dest) {
    if (!slots.Mapped(dest) && slots.Active(dest)) SendTo(slots, batch, dest, pool);
    if (batch.again) continue;
    const size_t count = counts_ + slots.rank() * sizeof(int32_t);
    std::memcpy(slots.At(batch.use, dest, count), &batch.counts[dest], sizeof(int32_t));
    slots.Wrote(batch.use, dest, count, sizeof(int32_t));
  }
}

void DispatchRows::Receive(const ExchangeSlots& slots, Batch* batch) const {
  const int ranks = slots.ranks();
  const auto* counts = reinterpret_cast<const int32_t*>(slots.Local(batch->use, counts_));
  batch->begin.assign(ranks + 1, 0);
  for (int source = 0; source < ranks; ++source) {
    const int32_t count = slots.Active(source) ? counts[source] : 0;
    CHECK(count >= 0 && count <= capacity_);
    batch->begin[source + 1] = batch->begin[source] + count;
  }
  batch->tokens.resize(batch->begin.back());
  batch->sources.resize(batch->begin.back());
  for (int source = 0; source < ranks; ++source)
    std::fill(batch->sources.begin() + batch->begin[source],
              batch->sources.begin() + batch->begin[source + 1], source);
}

Dispatched DispatchRows::Locate(const ExchangeSlots& slots, Batch* batch) const {
  batch->row_places.resize(batch->begin.back());
  for (int source = 0; source < slots.ranks(); ++source) {
    const bool mapped = slots.Mapped(source);
    const std::byte* rows =
        slots.At(batch->use, mapped ? source : slots.rank(), RowOffset(source, 0));
    const int32_t first = batch->begin[source], end = batch->begin[source + 1];
    for (int32_t n = first; n < end; ++n)
      batch->row_places[n] = rows + (mapped ? batch->tokens[n] : n - first) * row_bytes_;
  }
  return {
      .format = format_, .num_rows = batch->begin.back(), .row_places = batch->row_places.data()};
}

const float* DispatchRows::Weights(const ExchangeSlots& slots, const Batch& batch, int source,
                                   int64_t n) const {
  const bool mapped = slots.Mapped(source);
  const int64_t at = mapped ? batch.tokens[n] : n - batch.begin[source];
  return reinterpret_cast<const float*>(
      slots.At(batch.use, mapped ? source : slots.rank(), WeightsOffset(source, at)));
}

}  // namespace switchyard
