// Batches between a rank that takes part in deepep's normal mode from outside, as a GPU does, and
// ranks on CPUs, for tests. Experts multiply their rows by a number.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/device/rank_threads.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/rounds.h"
#include "moe/dispatchers/test_exchange.h"
#include "moe/placement/placement.h"

namespace switchyard {

// Rank 0 has all tokens; the other ranks have experts only.
struct ArenaCase {
  int ranks = 2;
  std::vector<int32_t> slots = {3, 7};  // [ranks] experts of each rank
  int k = 3;
  int64_t hidden = 160;
  int64_t max_tokens = 40;
  RowFormat format;

  MeshShape Mesh() const {
    return {.tp = ranks,
            .ep = ranks,
            .dp = ranks,
            .dense_tp = 1,
            .expert_ranks = ranks - 1,
            .expert_slots = slots};
  }
  int experts() const { return std::accumulate(slots.begin(), slots.end(), 0); }
  MoeOptions Options() const {
    MoeOptions options = ExchangeKind{"deepep", "normal"}.Options(format);
    options.host_experts = true;
    options.combine_long_seq = true;
    return options;
  }
  MoeShape Shape() const {
    return {.hidden = hidden,
            .intermediate = 32,
            .num_experts = experts(),
            .top_k = k,
            .max_tokens = max_tokens};
  }
  ExchangeShape Exchange() const { return ExchangeShapeOf(Options(), Shape(), Mesh()); }
  DeepEpArena Arena() const {
    return ArenaOfDeepEpNormal(RoundsOfPass(Options(), Exchange()), Exchange());
  }
  ExpertMap Experts() const { return {experts(), ranks, false, slots}; }
  size_t ArenaBytes() const {
    return RankComm::BytesPerRank(Mesh()) + MoeSymmetricBytes(Options(), Shape(), Mesh());
  }
  SomeTokens Tokens(int64_t tokens, unsigned seed) const {
    return SomeTokens::Random(tokens, experts(), k, hidden, seed);
  }
  // Every token has its experts on `rank`.
  SomeTokens TokensOf(int rank, int64_t tokens, unsigned seed) const {
    const Range own = ExpertsOfRank(experts(), ranks, rank, slots);
    SomeTokens some = Tokens(tokens, seed);
    for (size_t i = 0; i < some.topk.ids.size(); ++i) {
      const auto j = static_cast<int64_t>(i) % k;
      some.topk.ids[i] = j < own.size() ? static_cast<int32_t>(own.begin + j) : -1;
    }
    return some;
  }
};

inline float FactorOf(int expert) { return 0.5f + 0.25f * static_cast<float>(expert); }

// [tokens, k, H] in the type of combined rows: the outputs of all experts.
inline std::vector<std::byte> OutputsOf(const ArenaCase& c, const SomeTokens& some) {
  const ExchangeShape shape = c.Exchange();
  const auto bytes = c.hidden * static_cast<int64_t>(SizeOf(shape.output_dtype));
  std::vector<std::byte> outputs(some.topk.ids.size() * bytes);
  std::vector<float> row(c.hidden);
  for (size_t i = 0; i < some.topk.ids.size(); ++i) {
    if (some.topk.ids[i] < 0) continue;
    RoundRow(shape.row_format, some.x.data() + static_cast<int64_t>(i) / c.k * c.hidden, c.hidden,
             row.data());
    for (float& value : row) value *= FactorOf(some.topk.ids[i]);
    StoreRow(shape.output_dtype, row.data(), c.hidden, outputs.data() + i * bytes);
  }
  return outputs;
}

// [tokens, H]: the sums of the outputs over slots, in slot order.
inline std::vector<float> SumsOf(const ArenaCase& c, const SomeTokens& some) {
  const DType dtype = c.Exchange().output_dtype;
  const auto bytes = c.hidden * static_cast<int64_t>(SizeOf(dtype));
  const std::vector<std::byte> outputs = OutputsOf(c, some);
  std::vector<float> y(some.x.size(), 0.0f);
  for (size_t i = 0; i < some.topk.ids.size(); ++i)
    if (some.topk.ids[i] >= 0)
      AddWeightedRow(dtype, outputs.data() + i * bytes, some.topk.weights[i], c.hidden,
                     y.data() + static_cast<int64_t>(i) / c.k * c.hidden);
  return y;
}

// A rank on CPUs: takes part in `batches` batches without own tokens.
inline void ServeExperts(const ArenaCase& c, RankComm& comm, CpuMoeBackend& moe, int64_t batches) {
  const Range own = ExpertsOfRank(c.experts(), c.ranks, comm.mesh.ep_rank(), c.slots);
  const SomeTokens none({}, c.k, c.hidden, 1);
  ExchangeBatch batch(none, {0, 0});
  for (int64_t n = 0; n < batches; ++n) {
    batch.Begin(moe);
    batch.dispatched = moe.dispatcher().EndDispatch(&batch.handle);
    const PermutePair& permute = moe.permute(batch.dispatched.layout);
    permute.pre(moe.permute_context(), batch.dispatched, &batch.grouped);
    const GroupedRows& rows = batch.grouped;
    batch.outputs.resize(rows.num_rows * c.hidden);
    for (int64_t e = 0; e + 1 < std::ssize(rows.offsets); ++e)
      for (int64_t r = rows.offsets[e]; r < rows.offsets[e + 1]; ++r) {
        const float* x = rows.x + (rows.row_ids ? rows.row_ids[r] : r) * rows.ldx;
        for (int64_t i = 0; i < c.hidden; ++i)
          batch.outputs[r * c.hidden + i] = FactorOf(static_cast<int>(own.begin + e)) * x[i];
      }
    moe.dispatcher().BeginCombine(permute.post(rows, batch.outputs.data()), &batch.handle);
    moe.dispatcher().EndCombine(&batch.handle, batch.y.data());
  }
}

// Runs `source(comm)` on rank 0 and ServeExperts on the others.
inline void RunArenaRanks(const ArenaCase& c, int64_t batches,
                          const std::function<void(RankComm&)>& source,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  RunRankThreads(c.ranks, c.ArenaBytes(), [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), c.Mesh(), rank, {timeout});
    if (rank == 0) return source(*comm);
    ThreadPool pool(1);
    const auto moe = MakeCpuMoe(c.Options(), c.Shape(), *comm, pool);
    ServeExperts(c, *comm, *moe, batches);
  });
}

}  // namespace switchyard
