// Synthetic MoE layers, and rank threads that run them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/rank_threads.h"
#include "kernels/testing.h"
#include "moe/backends.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/layer.h"
#include "moe/reference.h"
#include "quant/quantize.h"

namespace switchyard {

// A layer with unsliced experts. ShareOf returns the shard that a rank would load.
struct TestLayer {
  struct Spec {
    WeightFormat format = WeightFormat::kF32;
    ActivationFormat activation = ActivationFormat::kNone;
    int64_t hidden = 160, intermediate = 256;
    int num_experts = 10, top_k = 3;
    bool clamped_with_biases = false;  // activation and biases as in gpt-oss
    bool squared = false;              // kRelu2: experts without a gate
    bool limited = false;              // kSwiGluLimited, with a limit below some elements
    bool shared = false;               // a shared expert with a gate
    bool scales_input = false;         // routed as in Llama 4; top_k must be 1
    int zero_experts = 0;              // experts without computation
    int64_t router_width = 0;          // MoeLayerConfig::router_width
    bool by_token = false;             // experts by token ids; router_width must be hidden + 1
    int hot_expert = -1;               // if not −1, the first choice of every token
    bool no_experts = false;           // every id is −1
    uint32_t seed = 1;
    WeightFormat router = WeightFormat::kF32;
  };
  explicit TestLayer(Spec s) : spec(s), random(s.seed) {
    config.hidden = s.hidden;
    config.router_width = s.router_width;
    config.router = {.num_experts = s.num_experts,
                     .top_k = s.top_k,
                     .zero_experts = s.zero_experts,
                     .renormalize = true,
                     .routed_scaling_factor = 1.5f};
    if (s.scales_input)
      config.router = {.num_experts = s.num_experts,
                       .top_k = s.top_k,
                       .scoring = RouterConfig::Scoring::kTopKSigmoid,
                       .scales_input = true};
    if (s.clamped_with_biases) config.activation = kernels::Activation::kSwiGluClamped;
    if (s.squared) config.activation = kernels::Activation::kRelu2;
    if (s.limited) {
      config.activation = kernels::Activation::kSwiGluLimited;
      config.swiglu_limit = 0.5f;
    }
    const int logits = config.router.num_logits();
    const bool own_rows = s.router_width > 0 && !s.by_token;
    whole.router.w = Weight(s.router, logits, own_rows ? s.router_width : s.hidden);
    if (s.by_token) AddTokenExperts();
    std::vector<float> bias = random.Normal(logits, 0.1f);
    if (s.hot_expert >= 0) bias[s.hot_expert] = 1000.0f;
    whole.router.bias = Keep(bias);
    if (s.no_experts) whole.router.correction_bias = Keep(std::vector<float>(logits, -INFINITY));
    for (int e = 0; e < s.num_experts; ++e)
      whole.experts.push_back(Expert(s.format, s.clamped_with_biases));
    if (s.shared) {
      whole.has_shared = true;
      whole.shared = Expert(s.format, false);
      whole.shared_gate = Weight(WeightFormat::kF32, 1, s.hidden);
    }
  }

  MoeShape Shape(int64_t max_tokens) const {
    return {.hidden = spec.hidden,
            .router_width = spec.router_width,
            .intermediate = spec.intermediate,
            .num_experts = spec.num_experts,
            .top_k = spec.top_k,
            .max_tokens = max_tokens,
            .has_shared = spec.shared,
            .scales_input = spec.scales_input,
            .zero_experts = spec.zero_experts,
            .by_token = config.router.by_token};
  }

  // The weights that a rank would load, for config.placement (default: trivial).
  MoeLayerWeights ShareOf(const Mesh& mesh, bool shared_whole) const {
    MoeLayerWeights share = whole;
    ExpertPlacement placement = config.placement;
    if (placement.num_logical() == 0) placement = ExpertPlacement::Trivial(spec.num_experts);
    const Range range = ExpertsOfRank(placement.num_physical(), mesh);
    share.experts.clear();
    for (int p = range.begin; p < range.end; ++p)
      share.experts.push_back(Slice(whole.experts[placement.physical_to_logical()[p]],
                                    mesh.moe_tp(), mesh.moe_tp_rank()));
    if (whole.has_shared && !shared_whole)
      share.shared = Slice(whole.shared, mesh.tp(), mesh.tp_rank());
    return share;
  }

  static kernels::ExpertWeights Slice(kernels::ExpertWeights w, int parts, int part) {
    const int64_t size = w.gate.n / parts, begin = part * size;
    w.gate = w.gate.Rows(begin, begin + size);
    w.up = w.up.Rows(begin, begin + size);
    w.down = w.down.Cols(begin, begin + size);
    if (w.gate_bias) w.gate_bias += begin;
    if (w.up_bias) w.up_bias += begin;
    if (part != 0) w.down_bias = nullptr;
    return w;
  }

  std::vector<float> Hidden(int64_t tokens, uint32_t seed = 7) const {
    return kernels::Random(seed).Normal(tokens * spec.hidden);
  }
  // MoeTokens::router_rows for rows of Hidden; empty without router_width.
  std::vector<float> RouterRows(std::span<const float> hidden) const {
    const int64_t width = spec.router_width, tokens = std::ssize(hidden) / spec.hidden;
    std::vector<float> rows(tokens * width);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* row = hidden.data() + t * spec.hidden;
      if (spec.by_token) {
        std::copy_n(row, spec.hidden, rows.data() + t * width);
        rows[(t + 1) * width - 1] =
            static_cast<float>(static_cast<int64_t>(std::fabs(row[0]) * 1000.0f) % kTokenIds);
        continue;
      }
      for (int64_t i = 0; i < width; ++i)
        rows[t * width + i] = row[(7 * i + 3) % spec.hidden] - 0.5f * row[i % spec.hidden];
    }
    return rows;
  }

  Spec spec;
  MoeLayerConfig config;
  MoeLayerWeights whole;

 private:
  static constexpr int64_t kTokenIds = 50;

  // Different experts for each token id.
  void AddTokenExperts() {
    config.router.scoring = RouterConfig::Scoring::kSqrtSoftplus;
    config.router.by_token = true;
    std::vector<int32_t> table, all(spec.num_experts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t id = 0; id < kTokenIds; ++id) {
      for (int j = 0; j < spec.top_k; ++j)
        std::swap(all[j], all[j + random.Below(spec.num_experts - j)]);
      table.insert(table.end(), all.begin(), all.begin() + spec.top_k);
    }
    token_experts = std::make_shared<const std::vector<int32_t>>(std::move(table));
    whole.router.token_experts = token_experts->data();
    whole.router.token_rows = kTokenIds;
  }
  kernels::ExpertWeights Expert(WeightFormat format, bool biases) {
    kernels::ExpertWeights w;
    w.gate = Weight(format, spec.intermediate, spec.hidden);
    w.up = spec.squared ? w.gate : Weight(format, spec.intermediate, spec.hidden);
    w.down = Weight(format, spec.hidden, spec.intermediate);
    for (WeightView* view : {&w.gate, &w.up, &w.down}) view->activation = spec.activation;
    if (biases) {
      w.gate_bias = Bias(spec.intermediate);
      w.up_bias = Bias(spec.intermediate);
      w.down_bias = Bias(spec.hidden);
    }
    return w;
  }

  WeightView Weight(WeightFormat format, int64_t n, int64_t k) {
    return Quantize(format, random.Normal(n * k, 0.1f), n, k, {.group_size = 32});
  }
  const float* Bias(int64_t n) { return Keep(random.Normal(n, 0.1f)); }
  const float* Keep(std::vector<float> values) {
    return kept.emplace_back(std::make_shared<const std::vector<float>>(std::move(values)))->data();
  }

  kernels::Random random;
  std::vector<std::shared_ptr<const std::vector<float>>> kept;
  std::shared_ptr<const std::vector<int32_t>> token_experts;
};

// Rows, some of which have router scores that are not finite.
struct FaultyRows {
  std::vector<float> hidden;     // [tokens, H]
  std::vector<int32_t> experts;  // [tokens] the first expert with such a score; −1: none
};
// Makes the score of expert 6 overflow in every fifth row, by replacing the layer's router weights.
// Every seventh row is NaN.
inline FaultyRows WithRouterFaults(TestLayer* layer, int64_t tokens) {
  const int64_t hidden = layer->spec.hidden, experts = layer->spec.num_experts;
  std::vector<float> w = kernels::Random(5).Normal(experts * hidden, 0.1f);
  w[6 * hidden] = 3e38f;
  layer->whole.router.w = Quantize(WeightFormat::kF32, w, experts, hidden);
  FaultyRows rows{layer->Hidden(tokens), std::vector<int32_t>(tokens, -1)};
  for (int64_t t = 0; t < tokens; ++t) {
    const bool overflows = t % 5 == 1, is_nan = t % 7 == 3;
    rows.hidden[t * hidden] = overflows ? 10.0f : 0.0f;
    if (is_nan) rows.hidden[t * hidden + 1] = NAN;
    if (overflows || is_nan) rows.experts[t] = is_nan ? 0 : 6;
  }
  return rows;
}

// Runs body(comm, pool) on every rank of a mesh, as threads, with symmetric memory for `options`.
inline void RunMoeRanks(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        const std::function<void(RankComm&, ThreadPool&)>& body,
                        SymmetricMemory::Options memory = {std::chrono::seconds(60)}) {
  const size_t bytes = RankComm::BytesPerRank(mesh) + MoeSymmetricBytes(options, shape, mesh);
  RunRankThreads(mesh.tp, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    const auto comm = RankComm::Create(std::move(arena), mesh, rank, memory);
    ThreadPool pool(mesh.tp <= 2 ? 2 : 1);
    body(*comm, pool);
  });
}

// One pass through a layer. `tokens`: number of tokens of each attention group. `decoding`: how
// many of them are decode rows, which come first. Token t of all groups, in group order, is row t
// of TestLayer::Hidden(total, seed). So for any split over groups there is one reference and one
// bit-exact result.
struct TestPass {
  std::vector<int64_t> tokens, decoding;  // [dp]
  uint32_t seed = 0;

  int64_t total() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
  int64_t FirstOf(int group) const {
    return std::accumulate(tokens.begin(), tokens.begin() + group, int64_t{0});
  }

  // A pass with `total` tokens in dp groups. The shares are unequal, and often a group is empty.
  static TestPass Spread(int64_t total, int dp, bool decode, uint32_t seed) {
    TestPass pass{std::vector<int64_t>(dp), std::vector<int64_t>(dp), seed};
    const auto empty = static_cast<int64_t>(seed % dp);
    const bool has_empty = dp > 2 || (dp == 2 && seed % 2 == 1);
    for (int64_t t = 0; t < total; ++t) {
      const int64_t group = (t * (t + 1) / 2 + seed) % dp;
      ++pass.tokens[has_empty && group == empty ? (group + 1) % dp : group];
    }
    if (decode) pass.decoding = pass.tokens;
    return pass;
  }
};

inline std::vector<TestPass> SpreadPasses(const std::vector<int64_t>& totals, int dp, bool decode) {
  std::vector<TestPass> passes;
  for (const int64_t total : totals)
    passes.push_back(TestPass::Spread(total, dp, decode, static_cast<uint32_t>(passes.size())));
  return passes;
}

inline MoeShape ShapeFor(const TestLayer& layer, const std::vector<TestPass>& passes) {
  int64_t most = 1;
  for (const TestPass& pass : passes) most = std::max(most, std::ranges::max(pass.tokens));
  return layer.Shape(most);
}

// Outputs of rank comm.mesh.rank() for its group's tokens in all passes. The passes run one after
// the other on one state, because data that a pass leaves in buffers must not affect later passes.
inline std::vector<float> RunPassesOnRank(const TestLayer& layer, const MoeOptions& options,
                                          const std::vector<TestPass>& passes, RankComm& comm,
                                          ThreadPool& pool) {
  const MoeShape shape = ShapeFor(layer, passes);
  const int group = comm.mesh.dp_rank();
  const MoeLayer moe(layer.config,
                     layer.ShareOf(comm.mesh, ScattersTokens(options, comm.mesh.shape())),
                     MakeCpuMoe(options, shape, comm, pool));
  const auto state = moe.MakeState();
  std::vector<float> all;
  for (const TestPass& pass : passes) {
    const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
    std::vector<float> out(pass.tokens[group] * layer.spec.hidden, NAN);
    const float* x = hidden.data() + pass.FirstOf(group) * layer.spec.hidden;
    const std::vector<float> router_rows = layer.RouterRows({x, out.size()});
    MoeTokens tokens = {pass.tokens, pass.decoding};
    if (!router_rows.empty()) tokens.router_rows = router_rows.data();
    moe.Forward(*state, x, tokens, out.data());
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

enum class MoeStage : uint8_t {
  kRoute,
  kBeginDispatch,
  kEndDispatch,
  kPostPermute,
  kBeginCombine,
  kEndCombine
};

// Runs a batch stage by stage, in the order of MoeLayer::Forward. In each round, calls `after`
// after each stage that MoeStage lists.
inline void RunStages(const MoeLayer& moe, MoeState& state, const float* hidden,
                      std::span<const int64_t> group_tokens, bool decode, float* out,
                      const std::function<void(MoeStage)>& after) {
  moe.Start(state, hidden, group_tokens, decode, out);
  while (state.NextRound()) {
    moe.Route(state);
    after(MoeStage::kRoute);
    moe.BeginDispatch(state);
    after(MoeStage::kBeginDispatch);
    if (state.in_first_round()) moe.RunShared(state);
    moe.EndDispatch(state);
    after(MoeStage::kEndDispatch);
    moe.PrePermute(state);
    moe.RunExperts(state);
    moe.PostPermute(state);
    after(MoeStage::kPostPermute);
    moe.BeginCombine(state);
    moe.RunDown(state);
    after(MoeStage::kBeginCombine);
    moe.EndCombine(state);
    after(MoeStage::kEndCombine);
  }
  moe.Scatter(state);
}

// Reorders outputs. Input: for each group, all its passes. Result: for each pass, all its groups.
inline std::vector<float> JoinGroups(const std::vector<TestPass>& passes, int64_t hidden,
                                     const std::vector<std::vector<float>>& groups) {
  std::vector<size_t> next(groups.size(), 0);
  std::vector<float> all;
  for (const TestPass& pass : passes) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const size_t count = pass.tokens[g] * hidden;
      EXPECT_LE(next[g] + count, groups[g].size());
      all.insert(all.end(), groups[g].begin() + next[g], groups[g].begin() + next[g] + count);
      next[g] += count;
    }
  }
  return all;
}

// Returns the outputs of all passes, and checks that they are bit-identical on all ranks of a
// group.
inline std::vector<float> RunPasses(const TestLayer& layer, const MoeOptions& options,
                                    const MeshShape& mesh, const std::vector<TestPass>& passes) {
  std::vector<std::vector<float>> outs(mesh.tp), groups;
  RunMoeRanks(options, ShapeFor(layer, passes), mesh, [&](RankComm& comm, ThreadPool& pool) {
    outs[comm.mesh.rank()] = RunPassesOnRank(layer, options, passes, comm, pool);
  });
  const int attn_tp = mesh.tp / mesh.dp;
  for (int rank = 0; rank < mesh.tp; ++rank) {
    if (rank % attn_tp == 0) groups.push_back(outs[rank]);
    EXPECT_TRUE(kernels::SameBits(groups.back(), outs[rank]))
        << "rank " << rank << " differs from rank " << rank / attn_tp * attn_tp;
  }
  return JoinGroups(passes, layer.spec.hidden, groups);
}

// The format of dispatched rows for these options, by the rule of ExchangeShapeOf.
inline RowFormat RowFormatOf(const MoeOptions& options) {
  return {options.row_dtype, options.dispatcher_output_dtype == "fp8"};
}

// The outputs of the reference for all passes. They do not depend on the groups.
inline std::vector<float> ReferencePasses(const TestLayer& layer, const MoeOptions& options,
                                          const std::vector<TestPass>& passes) {
  std::vector<float> all;
  for (const TestPass& pass : passes) {
    const std::vector<float> hidden = layer.Hidden(pass.total(), pass.seed);
    const std::vector<float> router_rows = layer.RouterRows(hidden);
    std::vector<float> out(hidden.size());
    MoeReference(layer.config, layer.whole, RowFormatOf(options), hidden.data(), pass.total(),
                 out.data(), options.waterfill, router_rows.empty() ? nullptr : router_rows.data());
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Largest absolute error, divided by the largest expected value.
inline double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, largest = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    error = std::max(error, std::abs(double{got[i]} - want[i]));
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return largest > 0 ? error / largest : error;
}

// Every --moe-a2a-backend of this build, with every mode of those that have modes.
struct A2aChoice {
  std::string a2a, mode;
  std::string Describe() const { return mode == "auto" ? a2a : a2a + " " + mode; }
};
inline std::vector<A2aChoice> AllA2aChoices() {
  const MoeBackends backends = BuiltinMoeBackends();
  std::vector<A2aChoice> choices;
  for (const auto& [name, backend] : backends.dispatchers.all())
    for (const char* mode : {"auto", "normal", "low_latency"})
      if (std::string(mode) == "auto" || name == "deepep" || name == "mooncake")
        choices.push_back({name, mode});
  for (const auto& [name, backend] : backends.fused.all()) choices.push_back({name, "auto"});
  return choices;
}

}  // namespace switchyard
