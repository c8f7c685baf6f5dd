#include "moe/dispatchers/sent_rows.h"

#include <cstring>
#include <functional>

#include "core/check.h"

namespace switchyard {

SentRows::SentRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan)
    : hidden_(shape.hidden),
      capacity_(capacity),
      format_(shape.row_format),
      row_bytes_(format_.Bytes(hidden_)),
      counts_(plan->Add("counts", sizeof(int32_t) * shape.ep)),
      rows_(plan->Add("rows", static_cast<size_t>(row_bytes_) * shape.ep * capacity)) {}

void SentRows::Begin(ExchangeSlots& slots, const ExpertMap& experts, const float* x,
                     const TopK& topk, Batch* batch) const {
  slots.Take(&batch->use);
  batch->x = x;
  batch->again = false;
  ChooseRanks(topk, experts, slots, batch);
}

void SentRows::BeginAgain(ExchangeSlots& slots, const float* x, Batch* batch) const {
  CHECK_EQ(static_cast<int>(batch->counts.size()), slots.ranks());
  slots.Take(&batch->use);
  batch->x = x;
  batch->again = true;
}

void SentRows::ChooseRanks(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                           Batch* batch) {
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

void SentRows::Send(ExchangeSlots& slots, const Batch& batch, ThreadPool& pool) const {
  const int ranks = slots.ranks(), me = slots.rank();
  const size_t segment = rows_ + SegmentBegin(me) * row_bytes_;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::byte* stored = nullptr;
      for (int dest = 0; dest < ranks; ++dest) {
        const int64_t order = batch.order[t * ranks + dest];
        if (order < 0 || dest == me || !slots.Active(dest)) continue;
        std::byte* row = slots.At(batch.use, dest, segment + order * row_bytes_);
        if (stored) {
          std::memcpy(row, stored, row_bytes_);
        } else {
          StoreRow(format_, batch.x + t * hidden_, hidden_, row);
          stored = row;
        }
      }
    }
  };
  pool.RunRanges(static_cast<int64_t>(batch.order.size()) / ranks, kRowGrain, std::cref(body));

  for (int dest = 0; dest < ranks; ++dest) {
    slots.Wrote(batch.use, dest, segment, batch.counts[dest] * row_bytes_);
    if (batch.again) continue;
    const size_t count = counts_ + me * sizeof(int32_t);
    std::memcpy(slots.At(batch.use, dest, count), &batch.counts[dest], sizeof(int32_t));
    slots.Wrote(batch.use, dest, count, sizeof(int32_t));
  }
}

void SentRows::Receive(const ExchangeSlots& slots, Batch* batch) const {
  const int ranks = slots.ranks(), me = slots.rank();
  const auto* counts = reinterpret_cast<const int32_t*>(slots.Local(batch->use, counts_));
  batch->begin.assign(ranks + 1, 0);
  for (int source = 0; source < ranks; ++source) {
    const int32_t count = slots.Active(source) ? counts[source] : 0;
    CHECK(count >= 0 && count <= capacity_);
    batch->begin[source + 1] = batch->begin[source] + count;
  }
  batch->row_at.resize(batch->begin.back());
  for (int source = 0; source < ranks; ++source) {
    int32_t* at = batch->row_at.data() + batch->begin[source];
    const int32_t count = batch->begin[source + 1] - batch->begin[source];
    for (int32_t i = 0; source != me && i < count; ++i)
      at[i] = static_cast<int32_t>(SegmentBegin(source)) + i;
  }
  const auto tokens = static_cast<int32_t>(batch->order.size() / ranks);
  for (int32_t t = 0; t < tokens; ++t)
    if (const int32_t order = batch->order[int64_t{t} * ranks + me]; order >= 0)
      batch->row_at[batch->begin[me] + order] = ~t;
}

Dispatched SentRows::Describe(const ExchangeSlots& slots, const Batch& batch) const {
  return {.rows = slots.Local(batch.use, rows_),
          .format = format_,
          .num_rows = batch.begin.back(),
          .row_at = batch.row_at.data(),
          .own_x = batch.x};
}

}  // namespace switchyard
