// Fixed-shape all-to-all for decode: `--deepep-mode low_latency`.
#pragma once

#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/combined_rows.h"
#include "moe/dispatchers/dispatch_rows.h"
#include "moe/dispatchers/exchange_slots.h"

namespace switchyard {

// Rows arrive grouped by expert. For each expert and source rank, the arena of the expert's rank
// has `capacity` places and a count. The sender writes the index of a row to each place. The expert
// computes these rows. A masked runner therefore needs no routing data. The rows themselves are
// stored once for all ranks of a host (DispatchRows), not once per expert.
//
// An exchange in which a rank has more tokens than `capacity` is rejected. The layer splits larger
// batches into rounds (MaxTokens), and no row is ever dropped. Outputs return as in normal mode
// (deepep_normal.h), with the same reduction order.
class DeepEpLowLatency : public Dispatcher {
 public:
  explicit DeepEpLowLatency(const DispatcherContext& context);
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape);

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kLowLatency}; }
  int64_t MaxTokens(bool) const override { return buffers_.sent.capacity(); }

  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override;
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override;
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override;
  bool Arrived(DispatchHandle* handle) override;
  Dispatched EndDispatch(DispatchHandle* handle) override;
  std::span<std::byte* const> OutputDestinations(const ExpertRows& experts,
                                                 DispatchHandle* handle) override;
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  int combine_parts() const override { return buffers_.returned.parts(); }
  void BeginCombinePart(const ExpertRows& experts, const OutputPart& part,
                        DispatchHandle* handle) override;
  void EndCombine(DispatchHandle* handle, float* y) override;

 private:
  enum Stage { kRows, kOutputs };  // kOutputs + p signals part p of the outputs

  // Contents of a place.
  struct Place {
    int32_t row;     // index among the rows from the source to this rank
    int32_t output;  // OutputPlace of the output at the source
  };

  // State of one batch.
  struct State {
    DispatchRows::Batch sent;
    // Data to send: [P, E_local] number of rows for each expert; [P, E_local, capacity] places.
    std::vector<int32_t> expert_counts;
    std::vector<Place> places;
    // Received data. counts: [P sources, E_local] number of valid places. place_row and place_slot:
    // [E_local, P sources, capacity]. For each place they have the index of its row among all
    // received rows, and the slot of the row's token.
    std::vector<int32_t> counts, place_row, place_slot;
    CombinedRows::Batch returned;
  };

  struct Buffers {
    Buffers(const MoeOptions& options, const ExchangeShape& shape);
    BufferPlan plan;
    DispatchRows sent;
    CombinedRows returned;
    size_t expert_counts;  // [P sources, E_local] i32
    size_t places;         // [E_local, P sources, capacity] Place
  };

  void CheckTokens(int64_t tokens) const;
  void ListValidPlaces(State* state) const;
  void SendPlaces(const State& state);
  void ReceivePlaces(State* state) const;
  // Index of the first place of (expert, source).
  int64_t FirstPlace(int64_t local_expert, int source) const {
    return (local_expert * slots_.ranks() + source) * buffers_.sent.capacity();
  }

  ThreadPool& pool_;
  const int64_t local_experts_;
  const int k_;
  const ExpertMap& experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace switchyard
