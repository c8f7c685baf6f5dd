// Exact-size all-to-all for batches of any size: `--deepep-mode normal`.
#pragma once

#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/combined_rows.h"
#include "moe/dispatchers/dispatch_rows.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/rounds.h"

namespace switchyard {

// Each rank rounds every row once, into its own arena. It sends two things to every destination
// rank (DispatchRows): the number of rows and, for each row, its metadata ("tags"): token index and
// local expert ids. Counts are not exchanged before the rows, so dispatch has one phase. Ranks of
// the same host read the rows in place.
//
// Combine returns one row per (token, slot). The expert's rank writes it to [token, slot] of the
// source's arena, where the rows are summed. Summing on the expert's rank first would return min(k,
// P) rows per token instead of k. But the reduction order, and with it the last bits, would then
// depend on which experts share a rank. --moe-combine-rows rank selects these partial sums. With P
// ranks, at most min(k, P) rows per token are dispatched and k are combined. On average, 1 / P of
// them stay local. Outputs are rounded to the sent format before weighting.
//
// A pass in several rounds has one combine, if the outputs buffer has space for all its tokens
// (RoundsOfPass). Each round writes its outputs to their place in the pass and raises the outputs
// flag. The flag signals that the next round may overwrite the rows, because the experts have read
// them. The sums are computed after the flag of the last round. With single-batch overlap the
// outputs have one flag for each part.
class DeepEpNormal : public Dispatcher {
 public:
  explicit DeepEpNormal(const DispatcherContext& context);
  // Constructs a dispatcher for any group of ranks, instead of the EP group of a RankComm.
  // `experts` and `pool` must outlive the dispatcher.
  DeepEpNormal(SymmetricMemory& memory, std::vector<int> group, const PassRounds& rounds,
               const ExchangeShape& shape, const ExpertMap& experts, ThreadPool& pool,
               const ExchangeSlots::Options& options);
  // Bytes that this constructor allocates.
  static size_t Bytes(const PassRounds& rounds, const ExchangeShape& shape, int slots);
  // Throws the errors of RoundsOfPass.
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape);

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kNormal}; }
  int64_t MaxTokens(bool) const override { return buffers_.sent.capacity(); }
  int64_t MaxCombineTokens(bool) const override { return buffers_.returned.capacity(); }

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
  const std::byte* EndCombineBySlot(DispatchHandle* handle) override;
  void ReleaseOutputs(DispatchHandle* handle) override;

 private:
  enum Stage { kRows, kOutputs };  // kOutputs + p signals part p of the outputs

  // State of one batch.
  struct State {
    DispatchRows::Batch sent;
    // [rows received, 1 + k]: token index at the source, then local expert ids.
    std::vector<int32_t> tags;
    CombinedRows::Batch returned;
  };

  struct Buffers {
    Buffers(const PassRounds& rounds, const ExchangeShape& shape);
    BufferPlan plan;
    DispatchRows sent;
    CombinedRows returned;
    size_t tags;  // [P sources, capacity, 1 + k] i32
  };

  void CheckTokens(int64_t tokens, const DispatchHandle& handle) const;
  void KeepSlot(const DispatchHandle& handle, State* state);
  void SendMetadata(const State& state);
  void ReceiveTags(State* state) const;
  // Writes the tags of all tokens that are sent to `dest`.
  void WriteTags(const DispatchRows::Batch& sent, int dest, int32_t* tags) const;
  // Offset of the tags that `source` sends.
  size_t TagOffset(int source) const {
    return buffers_.tags + buffers_.sent.SegmentBegin(source) * tag_size_ * sizeof(int32_t);
  }

  ThreadPool& pool_;
  const int k_;
  const int64_t tag_size_;  // 1 + k
  const ExpertMap& experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
};

}  // namespace switchyard
