#include "moe/dispatchers/return_rows.h"

#include <functional>

namespace switchyard {

void SumReturnedRows(const TopK& topk, const ExpertMap& experts, const ExchangeSlots& slots,
                     DType dtype, int64_t hidden, const std::byte* outputs, ThreadPool& pool,
                     float* y, const OwnOutputs* own) {
  const int64_t row_bytes = hidden * static_cast<int64_t>(SizeOf(dtype));
  const bool all_active = slots.AllActive();
  const auto output_of = [&](int64_t t, int j) -> SlotOutput {
    const int32_t place = OutputPlace(t, j, topk.k);
    const int32_t expert = topk.ids[place];
    if (expert < 0 || (!all_active && !slots.Active(experts.Owner(expert)))) return {};
    if (own && own->row_for[place] >= 0) return own->rows + own->row_for[place] * hidden;
    return outputs + place * row_bytes;
  };
  SumTopK(topk, dtype, hidden, output_of, pool, y);
}

ReturnedRows::ReturnedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan)
    : hidden_(shape.hidden),
      k_(shape.k),
      dtype_(shape.output_dtype),
      row_bytes_(hidden_ * static_cast<int64_t>(SizeOf(dtype_))),
      outputs_(plan->Add("outputs", static_cast<size_t>(row_bytes_) * capacity * k_)) {}

void ReturnedRows::Send(ExchangeSlots& slots, const SlotUse& use, const ExpertRows& experts,
                        int64_t tokens, Batch* batch, ThreadPool& pool) const {
  const int me = slots.rank();
  const std::vector<Target>& targets = batch->targets;
  OwnOutputs& own = batch->own;
  own.rows = experts.rows;
  own.row_for.assign(tokens * k_, -1);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto [rank, place] = targets[r];
      if (rank == me) {
        own.row_for[place] = static_cast<int32_t>(r);
      } else if (rank >= 0) {
        StoreRow(dtype_, experts.rows + r * hidden_, hidden_,
                 slots.At(use, rank, outputs_ + place * row_bytes_));
      }
    }
  };
  pool.RunRanges(experts.num_rows, kRowGrain, std::cref(body));
  for (const Target& target : targets)
    if (target.rank >= 0 && !slots.Mapped(target.rank))
      slots.Wrote(use, target.rank, outputs_ + target.place * row_bytes_, row_bytes_);
}

}  // namespace switchyard
