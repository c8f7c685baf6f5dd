#include "moe/dispatchers/combined_rows.h"

#include <algorithm>
#include <functional>

#include "core/check.h"

namespace switchyard {

void SumReturnedRows(const TopK& topk, TokenList tokens, const ExpertMap& experts,
                     const ExchangeSlots& slots, DType dtype, int64_t hidden,
                     const std::byte* outputs, ThreadPool& pool, float* y) {
  const int64_t row_bytes = hidden * static_cast<int64_t>(SizeOf(dtype));
  const bool all_active = slots.AllActive();
  const auto list = [&](int64_t t, auto& rows, auto& weights) {
    for (int j = 0; j < topk.k; ++j) {
      const int32_t place = OutputPlace(t, j, topk.k);
      const int32_t expert = topk.ids[place];
      if (expert < 0 || (!all_active && !slots.Active(experts.Owner(expert)))) continue;
      rows.push_back(outputs + place * row_bytes);
      weights.push_back(topk.weights[place]);
    }
  };
  SumRows(tokens, dtype, hidden, list, pool, y);
}

CombinedRows::CombinedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan)
    : combine_rows_(shape.combine_rows),
      parts_(shape.local_experts, shape.combine_parts),
      hidden_(shape.hidden),
      capacity_(capacity),
      k_(shape.k),
      dtype_(shape.output_dtype),
      row_bytes_(hidden_ * static_cast<int64_t>(SizeOf(dtype_))),
      outputs_(plan->Add("outputs", static_cast<size_t>(row_bytes_) * capacity *
                                        (combine_rows_ == CombineRows::kSlot ? k_ : shape.ep))) {}

void CombinedRows::Begin(const RoundPlace& round, const TopK& topk, const DispatchRows::Batch& sent,
                         Batch* batch) const {
  batch->first_token = round.first_token;
  batch->placed = batch->prepared = false;
  if (round.first_token == 0 && round.last) return;
  TopK& all = batch->topk;
  if (round.first_token == 0) {
    all.tokens = 0;
    all.k = k_;
    all.ids.clear();
    all.weights.clear();
    batch->order.clear();
  }
  // If a rank has tokens in this round, all its rounds before it were full.
  if (topk.tokens > 0) CHECK_EQ(all.tokens, round.first_token);
  all.tokens += topk.tokens;
  all.ids.insert(all.ids.end(), topk.ids.begin(), topk.ids.end());
  all.weights.insert(all.weights.end(), topk.weights.begin(), topk.weights.end());
  if (combine_rows_ == CombineRows::kRank)
    batch->order.insert(batch->order.end(), sent.order.begin(), sent.order.end());
}

std::span<std::byte* const> CombinedRows::Places(const ExchangeSlots& slots,
                                                 const DispatchRows::Batch& sent,
                                                 Batch* batch) const {
  const std::vector<Target>& targets = batch->targets;
  batch->places.assign(targets.size(), nullptr);
  batch->placed = true;
  if (combine_rows_ == CombineRows::kRank) {
    std::byte* outputs = batch->outputs.Get(targets.size() * row_bytes_);
    batch->output_of.assign(sent.tokens.size() * k_, -1);
    for (size_t r = 0; r < targets.size(); ++r) {
      if (targets[r].row < 0) continue;
      batch->places[r] = outputs + r * row_bytes_;
      batch->output_of[int64_t{targets[r].row} * k_ + targets[r].slot] = static_cast<int32_t>(r);
    }
    return batch->places;
  }
  batch->arenas.clear();
  for (int source = 0; source < slots.ranks(); ++source)
    batch->arenas.push_back(slots.At(sent.use, source, outputs_));
  for (size_t r = 0; r < targets.size(); ++r) {
    const auto [row, slot] = targets[r];
    if (row < 0) continue;
    const int64_t token = batch->first_token + sent.tokens[row];
    batch->places[r] = batch->arenas[sent.sources[row]] + OutputPlace(token, slot, k_) * row_bytes_;
  }
  return batch->places;
}

void CombinedRows::Prepare(ExchangeSlots& slots, const DispatchRows& rows,
                           const DispatchRows::Batch& sent, const ExpertRows& experts,
                           Range outputs, Batch* batch, ThreadPool& pool) const {
  CHECK_EQ(batch->places.size(), static_cast<size_t>(experts.num_rows));
  if (experts.rows) {
    StoreRows(dtype_, experts.rows + outputs.begin * hidden_, hidden_,
              std::span(batch->places).subspan(outputs.begin, outputs.size()), pool);
  }
  if (combine_rows_ == CombineRows::kRank) SumByRank(slots, rows, sent, outputs, batch, pool);
  RegisterWrites(slots, sent, outputs, *batch);
  batch->prepared = outputs.end == experts.num_rows;
}

bool CombinedRows::IsSummedWith(const Batch& batch, int64_t n, Range outputs) const {
  const auto of_row = batch.output_of.begin() + n * k_;
  const int32_t last = *std::max_element(of_row, of_row + k_);
  return last >= outputs.begin && last < outputs.end;
}

// Sums a token's outputs in float32, in ascending slot order. Rounds the sum to dtype_, the type of
// sent rows.
void CombinedRows::SumByRank(ExchangeSlots& slots, const DispatchRows& rows,
                             const DispatchRows::Batch& sent, Range experts_outputs, Batch* batch,
                             ThreadPool& pool) const {
  const auto add_up = [&](int64_t begin, int64_t end) {
    std::vector<float> sum(hidden_), weights;
    std::vector<const std::byte*> outputs;
    for (int64_t n = begin; n < end; ++n) {
      if (!IsSummedWith(*batch, n, experts_outputs)) continue;
      const int source = sent.sources[n];
      const float* of_slots = rows.Weights(slots, sent, source, n);
      outputs.clear();
      weights.clear();
      for (int j = 0; j < k_; ++j) {
        const int32_t r = batch->output_of[n * k_ + j];
        if (r < 0) continue;
        outputs.push_back(batch->places[r]);
        weights.push_back(of_slots[j]);
      }
      SumWeightedRows(dtype_, outputs, weights.data(), hidden_, sum.data());
      const size_t to = SumOffset(slots.rank(), batch->first_token + sent.tokens[n]);
      StoreRow(dtype_, sum.data(), hidden_, slots.At(sent.use, source, to));
    }
  };
  pool.RunRanges(static_cast<int64_t>(sent.tokens.size()), kRowGrain, std::cref(add_up));
}

void CombinedRows::RegisterWrites(ExchangeSlots& slots, const DispatchRows::Batch& sent,
                                  Range outputs, const Batch& batch) const {
  const auto wrote = [&](int64_t n, int slot) {
    const int source = sent.sources[n];
    if (slots.Mapped(source)) return;
    const int64_t token = batch.first_token + sent.tokens[n];
    slots.Wrote(sent.use, source,
                combine_rows_ == CombineRows::kSlot ? OutputOffset(token, slot)
                                                    : SumOffset(slots.rank(), token),
                row_bytes_);
  };
  if (slots.AllMapped()) return;
  if (combine_rows_ == CombineRows::kSlot) {
    for (const auto [row, slot] : std::span(batch.targets).subspan(outputs.begin, outputs.size()))
      if (row >= 0) wrote(row, slot);
  } else {
    for (int64_t n = 0; n < std::ssize(sent.tokens); ++n)
      if (IsSummedWith(batch, n, outputs)) wrote(n, 0);
  }
}

const std::byte* CombinedRows::OutputsBySlot(const ExchangeSlots& slots,
                                             const DispatchRows::Batch& sent, Batch* batch) const {
  CHECK(combine_rows_ == CombineRows::kSlot);
  batch->placed = batch->prepared = false;
  return slots.Local(sent.use, outputs_);
}

void CombinedRows::AwaitAll(ExchangeSlots& slots, const SlotUse& use, int first_stage,
                            const char* what) const {
  for (int part = 0; part < parts(); ++part) slots.WaitAll(use, first_stage + part, what);
}

void CombinedRows::AwaitAndSum(ExchangeSlots& slots, int first_stage, const char* what,
                               const DispatchRows::Batch& sent, const TopK& topk,
                               const ExpertMap& experts, Batch* batch, ThreadPool& pool,
                               float* y) const {
  batch->placed = batch->prepared = false;
  if (batch->first_token > 0 || parts() == 1) {
    AwaitAll(slots, sent.use, first_stage, what);
    const bool several = batch->first_token > 0;
    const TopK& all = several ? batch->topk : topk;
    return Sum(slots, sent, all, several ? batch->order : sent.order, {all.tokens}, experts, pool,
               y);
  }
  SortTokens(sent, topk.tokens, batch);
  for (int part = 0; part < parts(); ++part) {
    slots.WaitAll(sent.use, first_stage + part, what);
    Sum(slots, sent, topk, sent.order, batch->by_part.Of(part), experts, pool, y);
  }
}

void CombinedRows::SortTokens(const DispatchRows::Batch& sent, int64_t tokens, Batch* batch) const {
  batch->by_part.Sort(tokens, parts(), [&](int64_t t) {
    int last = 0;
    for (int64_t i = t * k_; i < (t + 1) * k_; ++i)
      if (sent.owners[i] >= 0) last = std::max(last, parts_.PartOf(sent.local_ids[i]));
    return last;
  });
}

void CombinedRows::Sum(const ExchangeSlots& slots, const DispatchRows::Batch& sent,
                       const TopK& topk, const std::vector<int32_t>& order, TokenList tokens,
                       const ExpertMap& experts, ThreadPool& pool, float* y) const {
  const std::byte* outputs = slots.Local(sent.use, outputs_);
  if (combine_rows_ == CombineRows::kSlot)
    return SumReturnedRows(topk, tokens, experts, slots, dtype_, hidden_, outputs, pool, y);
  const int ranks = slots.ranks();
  const auto list = [&](int64_t t, auto& rows, auto& weights) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (order[t * ranks + rank] < 0 || !slots.Active(rank)) continue;
      rows.push_back(outputs + (rank * capacity_ + t) * row_bytes_);
      weights.push_back(1.0f);
    }
  };
  SumRows(tokens, dtype_, hidden_, list, pool, y);
}

}  // namespace switchyard
