// Made-up MoE layers and rank threads that run them, for tests.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "kernels/testing.h"
#include "moe/layer.h"
#include "quant/quantize.h"

namespace switchyard {

// A layer with every expert whole, and the share of it that a rank would load.
struct TestLayer {
  struct Spec {
    WeightFormat format = WeightFormat::kF32;
    int64_t hidden = 160, intermediate = 256;
    int num_experts = 10, top_k = 3;
    bool clamped_with_biases = false;  // as gpt-oss has it
    bool shared = false;               // with a gate
    int hot_expert = -1;               // every token's first choice
    uint32_t seed = 1;
  };
  explicit TestLayer(Spec s) : spec(s), random(s.seed) {
    config.hidden = s.hidden;
    config.router = {.num_experts = s.num_experts,
                     .top_k = s.top_k,
                     .renormalize = true,
                     .routed_scaling_factor = 1.5f};
    if (s.clamped_with_biases) config.activation = kernels::Activation::kSwiGluClamped;
    whole.router.w = Weight(WeightFormat::kF32, s.num_experts, s.hidden);
    std::vector<float> bias = random.Normal(s.num_experts, 0.1f);
    if (s.hot_expert >= 0) bias[s.hot_expert] = 1000.0f;
    whole.router.bias = Keep(bias);
    for (int e = 0; e < s.num_experts; ++e)
      whole.experts.push_back(Expert(s.format, s.clamped_with_biases));
    if (s.shared) {
      whole.has_shared = true;
      whole.shared = Expert(s.format, false);
      whole.shared_gate = Weight(WeightFormat::kF32, 1, s.hidden);
    }
  }

  MoeShape Shape(int64_t max_tokens) const {
    return {spec.hidden, spec.intermediate, spec.num_experts, spec.top_k, max_tokens};
  }

  MoeLayerWeights ShareOf(const Mesh& mesh, bool shared_whole) const {
    MoeLayerWeights share = whole;
    const ExpertRange range = ExpertsOfRank(spec.num_experts, mesh.ep(), mesh.ep_rank());
    share.experts.clear();
    for (int e = range.begin; e < range.end; ++e)
      share.experts.push_back(Slice(whole.experts[e], mesh.moe_tp(), mesh.moe_tp_rank()));
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

  Spec spec;
  MoeLayerConfig config;
  MoeLayerWeights whole;

 private:
  kernels::ExpertWeights Expert(WeightFormat format, bool biases) {
    kernels::ExpertWeights w;
    w.gate = Weight(format, spec.intermediate, spec.hidden);
    w.up = Weight(format, spec.intermediate, spec.hidden);
    w.down = Weight(format, spec.hidden, spec.intermediate);
    if (biases) {
      w.gate_bias = Bias(spec.intermediate);
      w.up_bias = Bias(spec.intermediate);
      w.down_bias = Bias(spec.hidden);
    }
    return w;
  }

  WeightView Weight(WeightFormat format, int64_t n, int64_t k) {
    return Quantize(format, random.Normal(n * k, 0.1f), n, k);
  }
  const float* Bias(int64_t n) { return Keep(random.Normal(n, 0.1f)); }
  const float* Keep(std::vector<float> values) {
    return kept.emplace_back(std::make_shared<const std::vector<float>>(std::move(values)))->data();
  }

  kernels::Random random;
  std::vector<std::shared_ptr<const std::vector<float>>> kept;
};

// body(comm, pool) on every rank of a mesh, as threads, with symmetric memory for `options`.
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

}  // namespace switchyard
