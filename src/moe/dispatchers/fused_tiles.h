// Dispatch, experts and combine as one operator: `--moe-a2a-backend fused`.
#pragma once

#include <vector>

#include "moe/backends.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/dispatchers/published_rows.h"
#include "moe/runners/grouped_mlp.h"

namespace switchyard {

// Sources publish rows and routing in their own arenas, as in flashinfer. An expert's rank builds a
// work list of (token, slot) pairs, grouped by expert. It processes the list in tiles of at most
// kTileRows rows. Per tile it gathers the rows from the arenas of their sources and runs the
// experts. It then writes each output to [token, slot] of the buffer of the token's rank. When it
// has finished its list, so that all its outputs are complete, it raises one flag. The tokens' rank
// sums in slot order.
//
// The rows of all experts are thus never materialized. In addition to the index (twelve bytes per
// output), the scratch is one tile of inputs, intermediates and outputs, for any batch size. A hot
// expert takes several tiles, and its weights are read once per tile; small experts share a tile.
//
// Traffic, for T tokens of hidden size H on each of P ranks: P · T · k ids to every rank; k rows of
// H per token dispatched and k combined. A row for several experts of a rank is gathered once for
// each. Memory per slot: T rows, T · k ids, and T · k outputs.
//
// Results are bit-identical to deepep and grouped_mlp, because the same kernel computes the same
// rows and outputs are summed in the same order. Based on the fused MoE kernels of DeepGEMM (Mega
// MoE) and of Ascend (FuseEP), in which one kernel pulls tokens, multiplies and pushes results.
//
// Why no buffer is overwritten too early (terms as in exchange_slots.h): B reads A's published rows
// of round r before B raises its outputs flag of r. A ends round r only after it has seen that flag
// from every B. B writes outputs for A in round r + 1 after A's rows flag of round r + 1. A raises
// that flag after it has ended round r, including its sums.
class FusedTiles : public FusedExperts {
 public:
  static constexpr int64_t kTileRows = 256;

  explicit FusedTiles(const DispatcherContext& context);
  static ExchangeMemory Memory(const MoeOptions& options, const ExchangeShape& shape);

  bool Supports(WeightFormat format) const override { return runner_.Supports(format); }
  int64_t MaxTokens(bool) const override { return buffers_.published.capacity(); }
  void Begin(const float* x, const TopK& topk, bool decode, DispatchHandle* handle) override;
  void End(const ExpertBlock& block, DispatchHandle* handle, float* y) override;

  // The largest number of rows that the scratch has held so far.
  int64_t most_tile_rows() const { return most_tile_rows_; }

 private:
  enum Stage { kRows, kOutputs, kNumStages };

  // A work item: one output that this rank computes.
  struct Work {
    int32_t source = 0, token = 0, slot = 0;
  };

  // State of one batch.
  struct State {
    SlotUse use;
    const float* x = nullptr;                     // [tokens, H] own rows
    std::vector<PublishedRows::Routing> routing;  // [P]
    std::vector<Work> work;                       // grouped by expert
    std::vector<int32_t> offsets;  // [E_local + 1] offset of each expert's items in `work`
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
  GroupedRows tile_;         // uses storage.x and storage.offsets
  Scratch<float> tile_out_;  // [tile rows, H]
  int64_t most_tile_rows_ = 0;
};

FusedBackend FusedTilesBackend();

}  // namespace switchyard
