// Dispatch, experts and combine as one operator: `--moe-a2a-backend fused`.
#pragma once

#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/published_rows.h"
#include "moe/runners/grouped_mlp.h"

namespace switchyard {

// Sources publish rows and routing in their own arenas, as flashinfer does. An expert's rank lists,
// expert by expert, which (token, slot) it has to compute, and walks that list in tiles of at most
// kTileRows rows: it gathers the tile's rows from the arenas of their sources, runs the experts on
// them, and writes each output to [token, slot] of the buffer of the token's rank. When a flag says
// that a rank has gone through its list, what it had to give is there; the tokens' rank adds up in
// slot order.
//
// The rows of all experts are thus never laid out: besides the index (twelve bytes for each output)
// the scratch is one tile of inputs, middles and outputs, whatever the batch. A hot expert takes
// several tiles, and its weights are read once for each; small experts share one.
//
// Moved, for T tokens of hidden size H on each of P ranks: P · T · k ids to every rank; k rows of H
// a token out (a row that several experts of a rank want is gathered for each of them) and k back.
// Memory of each of the slots: T rows, T · k ids, and T · k outputs.
//
// Results are those of deepep and grouped_mlp, bit for bit: the same rows by the same kernel, added
// in the same order. Idea: the fused MoE kernels of DeepGEMM (Mega MoE) and of Ascend (FuseEP),
// where one kernel pulls tokens, multiplies and pushes results.
//
// Why nothing is overwritten too early (exchange_slots.h has the terms). B reads A's published rows
// of round r before B raises its flag for the outputs of r, and A ends r only when it has seen that
// flag from every B. B writes A's outputs of round r + 1 after A's flag for the rows of r + 1,
// which A raises after it has ended r, its sums included.
class FusedTiles : public FusedExperts {
 public:
  static constexpr int64_t kTileRows = 256;

  explicit FusedTiles(const DispatcherContext& context);
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape);

  bool Takes(WeightFormat format) const override { return runner_.Takes(format); }
  int64_t MaxTokens(bool) const override { return buffers_.published.capacity(); }
  void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) override;
  void End(const ExpertBlock& block, DispatchHandle* handle, float* y) override;

  // The most rows that the scratch ever held.
  int64_t most_tile_rows() const { return most_tile_rows_; }

 private:
  enum Stage { kRows, kOutputs, kNumStages };

  // An output that this rank owes.
  struct Work {
    int32_t source = 0, token = 0, slot = 0;
  };

  // One batch.
  struct State {
    SlotUse use;
    const float* x = nullptr;                     // [tokens, H] own rows
    std::vector<PublishedRows::Routing> routing;  // [P]
    std::vector<Work> work;                       // expert by expert
    std::vector<int32_t> offsets;                 // [E_local + 1] of `work`
  };

  // Offsets in a slot.
  struct Buffers {
    Buffers(const MoeOptions& options, const ExchangeShape& shape);
    BufferPlan plan;
    PublishedRows published;
    size_t outputs = 0;  // [capacity, k, H]
  };

  void ListWork(int local_experts, State* state);
  void FetchRows(const State& state);
  void RunTile(const ExpertBlock& block, const State& state, int64_t begin, int64_t end);
  void Gather(const State& state, std::span<const Work> tile);
  void Return(const State& state, std::span<const Work> tile);

  ThreadPool& pool_;
  const int64_t hidden_;
  const int k_;
  const RowFormat format_;
  const DType output_dtype_;
  const int64_t output_bytes_;
  const ExpertMap& experts_;
  const Buffers buffers_;
  ExchangeSlots slots_;
  GroupedMlpRunner runner_;
  GroupedRows tile_;         // of storage: x and offsets
  Scratch<float> tile_out_;  // [tile rows, H]
  int64_t most_tile_rows_ = 0;
};

FusedBackend FusedTilesBackend();

}  // namespace switchyard
