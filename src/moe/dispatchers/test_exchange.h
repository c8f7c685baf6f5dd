// Batches with given routing, run by rank threads through any exchange, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "comm/device/rank_threads.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/test_layer.h"

namespace switchyard {

// An exchange, described by the values of its flags.
struct ExchangeKind {
  std::string a2a, mode = "auto";

  MoeOptions Options(RowFormat format = {}, int capacity = 128) const {
    return {.a2a_backend = a2a,
            .deepep_mode = mode,
            .max_dispatch_tokens_per_rank = capacity,
            .dispatcher_output_dtype = format.fp8 ? "fp8" : "bf16",
            .row_dtype = format.dtype};
  }
};
inline std::string NameOf(const ExchangeKind& kind) { return kind.a2a + "_" + kind.mode; }

inline const std::vector<ExchangeKind> kAllToAllKinds = {
    {"deepep", "normal"},   {"deepep", "low_latency"},   {"deepep", "auto"},   {"flashinfer"},
    {"mooncake", "normal"}, {"mooncake", "low_latency"}, {"mooncake", "auto"}, {"fused"}};

// Tokens of all ranks and their routing.
struct SomeTokens {
  TopK topk;
  std::vector<float> x;  // [tokens, H]

  // ids [tokens, k]
  SomeTokens(std::vector<int32_t> ids, int k, int64_t hidden, unsigned seed) {
    kernels::Random random(seed);
    topk.tokens = static_cast<int64_t>(ids.size()) / k;
    topk.k = k;
    topk.weights = random.Normal(static_cast<int64_t>(ids.size()));
    topk.ids = std::move(ids);
    x = random.Normal(topk.tokens * hidden);
  }

  // Tokens with distinct random experts; some slots have no expert.
  static SomeTokens Random(int64_t tokens, int experts, int k, int64_t hidden, unsigned seed) {
    kernels::Random random(seed + 1000);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < tokens; ++t) {
      const std::vector<int32_t> order = random.Shuffled(experts);
      for (int j = 0; j < k; ++j) ids.push_back(random.Below(5) == 0 ? -1 : order[j]);
    }
    return {std::move(ids), k, hidden, seed};
  }
};

// One rank's share of the tokens in an exchange, through a dispatcher or a fused operator.
struct ExchangeBatch {
  TopK topk;
  std::vector<float> x, y, outputs;
  DispatchHandle handle;
  Dispatched dispatched;
  GroupedRows grouped;

  ExchangeBatch(const SomeTokens& all, Range share) {
    const int k = all.topk.k;
    const int64_t hidden = all.topk.tokens > 0 ? all.x.size() / all.topk.tokens : 0;
    const auto cut = [&](const auto& values, int64_t width) {
      return std::decay_t<decltype(values)>(values.begin() + share.begin * width,
                                            values.begin() + share.end * width);
    };
    topk = {.tokens = share.size(),
            .k = k,
            .ids = cut(all.topk.ids, k),
            .weights = cut(all.topk.weights, k)};
    x = cut(all.x, hidden);
    y.assign(x.size(), NAN);
  }

  void Begin(CpuMoeBackend& moe, bool decode = false) {
    if (moe.fused()) return moe.fused()->Begin(x.data(), topk, decode, &handle);
    moe.dispatcher().BeginDispatch(x.data(), topk, decode, &handle);
  }
  // Runs the stages from EndDispatch to BeginCombine.
  void Compute(CpuMoeBackend& moe, const ExpertBlock& block) {
    if (moe.fused()) return;
    dispatched = moe.dispatcher().EndDispatch(&handle);
    const PermutePair& permute = moe.permute(dispatched.layout);
    permute.pre(moe.permute_context(), dispatched, &grouped);
    outputs.resize(grouped.num_rows * moe.shape().hidden);
    moe.runner().Run(block, grouped, moe.shape().hidden, moe.pool(), outputs.data());
    moe.dispatcher().BeginCombine(permute.post(grouped, outputs.data()), &handle);
  }
  void End(CpuMoeBackend& moe, const ExpertBlock& block) {
    if (moe.fused()) return moe.fused()->End(block, &handle, y.data());
    moe.dispatcher().EndCombine(&handle, y.data());
  }
  void RunAll(CpuMoeBackend& moe, const ExpertBlock& block, bool decode = false) {
    Begin(moe, decode);
    Compute(moe, block);
    End(moe, block);
  }
};

// A rank's environment for running batches.
struct ExchangeRank {
  CpuMoeBackend& moe;
  const ExpertBlock& block;
  int ep, ep_rank, moe_tp_rank;

  ExchangeBatch ShareOf(const SomeTokens& all) const {
    return {all, EvenPart(all.topk.tokens, ep, ep_rank)};
  }
};

// Runs body(rank) on one thread per rank of the mesh, with `ranks_per_host` ranks on a host (0: all
// on one host). Ranks hold the layer's experts in ascending order of id. `max_tokens`: maximum
// number of tokens of all ranks together.
inline void RunExchangeRanks(const MoeOptions& options, const TestLayer& layer,
                             const MeshShape& mesh, int64_t max_tokens,
                             const std::function<void(const ExchangeRank&)>& body,
                             SymmetricMemory::Options memory = {std::chrono::seconds(60)},
                             int ranks_per_host = 0) {
  const MoeShape shape = layer.Shape(max_tokens);
  const size_t bytes = RankComm::BytesPerRank(mesh) + MoeSymmetricBytes(options, shape, mesh);
  const auto run = [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank, memory);
    ThreadPool pool(mesh.tp <= 2 ? 2 : 1);
    const MoeLayerWeights share = layer.ShareOf(comm->mesh, /*shared_whole=*/true);
    const ExpertBlock block{.experts = share.experts};
    const auto moe = MakeCpuMoe(options, shape, *comm, pool);
    body({*moe, block, comm->mesh.ep(), comm->mesh.ep_rank(), comm->mesh.moe_tp_rank()});
  };
  if (ranks_per_host > 0) return RunTcpRankThreads(mesh.tp, ranks_per_host, bytes, run);
  RunRankThreads(mesh.tp, bytes, run);
}

// Outputs of batches that run one after the other: [batch][MoE-TP rank][tokens, H].
using ExchangeOutputs = std::vector<std::vector<std::vector<float>>>;
inline ExchangeOutputs RunExchange(const MoeOptions& options, const TestLayer& layer,
                                   const MeshShape& mesh, const std::vector<SomeTokens>& batches,
                                   int ranks_per_host = 0) {
  int64_t most = 1;
  ExchangeOutputs all;
  for (const SomeTokens& batch : batches) {
    most = std::max(most, batch.topk.tokens);
    all.emplace_back(mesh.tp / mesh.ep, std::vector<float>(batch.x.size(), NAN));
  }
  const auto body = [&](const ExchangeRank& rank) {
    for (size_t i = 0; i < batches.size(); ++i) {
      ExchangeBatch batch = rank.ShareOf(batches[i]);
      batch.RunAll(rank.moe, rank.block, /*decode=*/i % 2 == 1);
      const Range share = EvenPart(batches[i].topk.tokens, rank.ep, rank.ep_rank);
      std::ranges::copy(batch.y,
                        all[i][rank.moe_tp_rank].begin() + share.begin * layer.spec.hidden);
    }
  };
  RunExchangeRanks(options, layer, mesh, most, body, {std::chrono::seconds(60)}, ranks_per_host);
  return all;
}

}  // namespace switchyard
