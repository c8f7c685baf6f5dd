// Exact all-to-all for batches of any size: `--deepep-mode normal`.
#pragma once

#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/return_rows.h"
#include "moe/dispatchers/sent_rows.h"

namespace switchyard {

// Each rank rounds every row once, in its own arena, and tells each rank that needs it the row's
// token and local experts (tags), and how many there are (SentRows): one wave, nobody waits for
// counts before rows. Ranks of the same host read the rows where they are.
//
// What returns is one row for each (token, slot), left by the expert's rank at [token, slot] of
// the source's arena and added up there. Adding up at the expert's rank first would return
// min(k, P) rows a token instead of k, but then the order of additions, and with it the last bits,
// would depend on which experts share a rank: --moe-combine-rows rank. Rows a token, of P ranks,
// with a share 1 / P of them staying where they are: min(k, P) out and k back, in the formats in
// flight, which outputs are rounded to before they are weighted.
class DeepEpNormal : public Dispatcher {
 public:
  explicit DeepEpNormal(const DispatcherContext& context);
  // Error kInvalid where a pass would need more rounds than --deepep-normal-long-seq-round.
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape);

  bool scatters() const override { return true; }
  std::vector<DispatchLayout> layouts() const override { return {DispatchLayout::kNormal}; }
  int64_t MaxTokens(bool) const override { return buffers_.sent.capacity(); }

  std::byte* InputRows(int64_t tokens, bool decode, DispatchHandle* handle) override;
  void BeginDispatch(const float* x, const TopK& topk, bool decode,
                     DispatchHandle* handle) override;
  void BeginDispatchAgain(const float* x, bool decode, DispatchHandle* handle) override;
  bool Arrived(DispatchHandle* handle) override;
  Dispatched EndDispatch(DispatchHandle* handle) override;
  std::span<std::byte* const> OutputPlaces(const ExpertRows& experts,
                                           DispatchHandle* handle) override;
  void PrepareCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void BeginCombine(const ExpertRows& experts, DispatchHandle* handle) override;
  void EndCombine(DispatchHandle* handle, float* y) override;

 private:
  enum Stage { kRows, kOutputs, kNumStages };

  // One batch.
  struct State {
    SentRows::Batch sent;
    std::vector<int32_t> tags;  // [rows received, 1 + k] token at its source, local ids of slots
    ReturnedRows::Batch returned;
  };

  struct Buffers {
    Buffers(const MoeOptions& options, const ExchangeShape& shape);
    BufferPlan plan;
    SentRows sent;
    ReturnedRows returned;
    size_t tags;  // [P sources, capacity, 1 + k] i32
  };

  void CheckTokens(int64_t tokens) const;
  void SendTags(const State& state);
  void ReceiveTags(State* state) const;
  // Writes the tags of all tokens for `dest`.
  void WriteTags(const SentRows::Batch& sent, int dest, int32_t* tags) const;
  // Of the segment of a source.
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
