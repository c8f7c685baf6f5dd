// Exact all-to-all for batches of any size: `--deepep-mode normal`.
#pragma once

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/expert_map.h"

namespace switchyard {

// Counts are exchanged (BeginDispatch waits for the peers'), then each rank writes every row once
// for each rank that needs it, straight to its place in that rank's arena. Places follow from the
// counts (source rank by source rank, tokens ascending), so no order depends on timing.
//
// What returns is one row for each (token, slot), written by the expert's rank at [token, slot] of
// the source's arena and added up there. Adding up at the expert's rank first would return
// min(k, P) rows a token instead of k, but then the order of additions, and with it the last bits,
// would depend on which experts share a rank. Bytes a token of hidden size H: at most min(k, P) · H
// out and k · H back, times the size of the dtype in flight, which outputs are rounded to before
// they are weighted.
class DeepEpNormal : public Dispatcher {
 public:
  explicit DeepEpNormal(const DispatcherContext& context);
  static size_t SymmetricBytes(const MoeOptions& options, const MoeShape& shape,
                               const MeshShape& mesh);

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kNormal}; }
  int64_t MaxTokens(bool) const override { return buffers_.rows_capacity; }

  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override;
  Dispatched EndDispatch(DispatchHandle* handle) override;
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void EndCombine(DispatchHandle* handle, float* y) override;

 private:
  enum Stage { kCounts, kRows, kOutputs, kNumStages };

  // Offsets in a slot.
  struct Buffers {
    Buffers(const MoeOptions& options, const MoeShape& shape, int ep);
    int64_t own_capacity;   // tokens of one rank
    int64_t rows_capacity;  // rows received: at worst all tokens of all ranks
    size_t counts;          // [P sources, P destinations] i32
    size_t rows;            // [rows_capacity, H]
    size_t tags;            // [rows_capacity, 1 + k] i32: token at its source, local ids of slots
    size_t outputs;         // [own_capacity, k, H]
    size_t bytes;
  };

  void CountSends(DispatchHandle* handle) const;
  void ExchangeCounts(DispatchHandle* handle);
  void SendRows(const float* x, const DispatchHandle& handle);

  ThreadPool& pool_;
  const int64_t hidden_;
  const int k_;
  const DType row_dtype_;
  const int64_t row_bytes_;
  const ExpertMap experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace switchyard
