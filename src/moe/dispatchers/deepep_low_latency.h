// All-to-all of fixed shape for decode: `--deepep-mode low_latency`.
#pragma once

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/expert_map.h"

namespace switchyard {

// Every (expert, source rank) has `capacity` places in the arena of the expert's rank, so a sender
// knows where each row goes without asking: rows leave with their counts, one wave, no round trip.
// The price is one row for each (token, expert) instead of each (token, rank), and buffers for the
// worst case of every expert. A rank with more tokens than capacity is refused; the layer sends
// larger batches in rounds (MaxTokens), and no row is ever dropped. Outputs return as in normal
// mode (deepep_normal.h), by the same order of additions.
class DeepEpLowLatency : public Dispatcher {
 public:
  explicit DeepEpLowLatency(const DispatcherContext& context);
  static size_t SymmetricBytes(const MoeOptions& options, const MoeShape& shape,
                               const MeshShape& mesh);

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kLowLatency}; }
  int64_t MaxTokens(bool) const override { return buffers_.capacity * slots_.ranks(); }

  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override;
  Dispatched EndDispatch(DispatchHandle* handle) override;
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void EndCombine(DispatchHandle* handle, float* y) override;

 private:
  enum Stage { kRows, kOutputs, kNumStages };

  // Offsets in a slot. E_local is the most experts of a rank.
  struct Buffers {
    Buffers(const MoeOptions& options, const MoeShape& shape, int ep);
    int64_t capacity;       // tokens of one rank
    int64_t local_experts;  // E_local
    size_t counts;          // [P sources, E_local] i32
    size_t rows;            // [E_local, P sources, capacity, H]
    size_t tags;            // [E_local, P sources, capacity] i32: OutputPlace at the source
    size_t outputs;         // [capacity, k, H]
    size_t bytes;
  };

  void CountSends(DispatchHandle* handle) const;
  void SendCounts(const DispatchHandle& handle);
  void SendRows(const float* x, const DispatchHandle& handle);
  // Index of the first place of (expert, source) in rows and tags.
  int64_t FirstPlace(int64_t local_expert, int source) const {
    return (local_expert * slots_.ranks() + source) * buffers_.capacity;
  }

  ThreadPool& pool_;
  const int64_t hidden_;
  const int k_, num_experts_;
  const DType row_dtype_;
  const int64_t row_bytes_;
  const ExpertMap experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace switchyard
