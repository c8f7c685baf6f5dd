// Overhead of expert recording in a decode step: without a recorder, and with one in each mode.
// Runs the MoE layers of OLMoE-1B-7B's shape with random weights, on two ranks with separate
// batches. Passes of all variants alternate, so that other load on the machine affects all variants
// equally. The time of the fastest pass of each variant is printed, since it is disturbed least.
// `inside` is the time of the recorder's calls on rank 0 in a pass, the median over passes. A whole
// step also has attention, norms and the head.
//
// Usage: recorder_bench [tokens of each rank ...] 2>/dev/null
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "core/log.h"
#include "core/tensor.h"
#include "eplb/recorder.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/layer.h"
#include "quant/quantize.h"

namespace switchyard::bench {
namespace {

constexpr int kLayers = 16, kExperts = 64, kTopK = 8, kRanks = 2;
constexpr int64_t kHidden = 2048, kIntermediate = 1024;
constexpr int64_t kRows = 512;  // number of different tokens; passes select different experts
constexpr double kSecondsPerCase = 6.0;

const ExpertRecorderOptions kVariants[] = {{.mode = "stat"},     {.mode = "stat_approx"},
                                           {.mode = "per_pass"}, {.mode = "per_token"},
                                           {.metrics = true},    {.mode = "stat", .metrics = true}};
const char* const kNames[] = {"off",       "stat",    "stat_approx", "per_pass",
                              "per_token", "metrics", "stat+metrics"};

MoeOptions Options() {
  MoeOptions options;
  options.a2a_backend = "deepep";
  options.row_dtype = DType::kBF16;
  return options;
}
MoeShape Shape(int64_t tokens) {
  return {.hidden = kHidden,
          .intermediate = kIntermediate,
          .num_experts = kExperts,
          .top_k = kTopK,
          .max_tokens = tokens};
}
constexpr MeshShape kMesh = {.tp = kRanks, .ep = kRanks, .dp = kRanks};

// All layers use the experts of one layer, which are larger than any cache.
class Weights {
 public:
  explicit Weights(int local_experts) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(kIntermediate * kHidden);
    for (float& v : values) v = normal(random);
    const WeightView up = Quantize(WeightFormat::kBF16, values, kIntermediate, kHidden);
    const WeightView down = Quantize(WeightFormat::kBF16, values, kHidden, kIntermediate);
    values.resize(kExperts * kHidden);
    for (float& v : values) v = normal(random);
    layer.router.w = Quantize(WeightFormat::kF32, values, kExperts, kHidden);
    for (int e = 0; e < local_experts; ++e)
      layer.experts.push_back({.gate = Copy(up), .up = Copy(up), .down = Copy(down)});
  }
  MoeLayerWeights layer;

 private:
  WeightView Copy(WeightView w) {
    Tensor memory = Tensor::Empty(DType::kU8, {w.n * w.k * 2});
    std::memcpy(memory.mutable_raw(), w.data, w.n * w.k * 2);
    w.data = memory.raw();
    copies_.push_back(std::move(memory));
    return w;
  }
  std::vector<Tensor> copies_;
};

// Forwards the calls and accumulates their time.
class Timed : public RoutingObserver {
 public:
  explicit Timed(ExpertRecorder& recorder) : recorder_(recorder) {}
  void OnPlacement(int layer, const ExpertPlacement& placement) override {
    recorder_.OnPlacement(layer, placement);
  }
  void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) override {
    Time([&] { recorder_.OnRoute(pass, layer, tokens); });
  }
  bool wants_dispatch() const override { return recorder_.wants_dispatch(); }
  void OnDispatch(uint64_t pass, int layer, const GroupedRows& rows) override {
    Time([&] { recorder_.OnDispatch(pass, layer, rows); });
  }
  template <typename F>
  void Time(const F& f) {
    const auto begin = Clock::now();
    f();
    seconds += SecondsSince(begin);
  }
  double seconds = 0;

 private:
  ExpertRecorder& recorder_;
};

// One rank; rank 0 prints.
void RunRank(int64_t tokens, RankComm& comm, ThreadPool& pool) {
  const auto runtime = MakeCpuMoe(Options(), Shape(tokens), comm, pool);
  const Weights weights(runtime->experts().LocalExperts(comm.mesh.ep_rank()));
  std::vector<std::unique_ptr<ExpertRecorder>> recorders;
  std::vector<std::unique_ptr<Timed>> timed;
  std::vector<MoeLayer> layers;
  for (int layer = 0; layer < kLayers; ++layer) {
    MoeLayerConfig config{.hidden = kHidden, .layer = layer};
    config.router = {.num_experts = kExperts, .top_k = kTopK};
    layers.emplace_back(config, weights.layer, runtime);
  }
  for (const ExpertRecorderOptions& options : kVariants) {
    const ExpertRecorderShape shape{.layers = kLayers, .experts = kExperts, .top_k = kTopK};
    recorders.push_back(std::make_unique<ExpertRecorder>(options, shape, comm));
    timed.push_back(std::make_unique<Timed>(*recorders.back()));
    for (int layer = 0; layer < kLayers; ++layer)
      recorders.back()->OnPlacement(layer, ExpertPlacement::Trivial(kExperts));
    if (!options.mode.empty()) recorders.back()->Start();
  }

  const auto state = runtime->MakeState(0);
  std::mt19937 random(100 + comm.mesh.rank());
  std::normal_distribution<float> normal;
  std::vector<float> hidden((kRows + tokens) * kHidden), out(tokens * kHidden);
  for (float& v : hidden) v = normal(random);
  const std::vector<int64_t> groups(kRanks, tokens);
  const std::vector<int32_t> positions(tokens, 100), rows(tokens, 1);
  const std::vector<uint64_t> ids(tokens, 1);
  int64_t first = 0;
  // Seconds of a pass, and of the recorder's calls in it.
  const auto pass = [&](int variant) {
    ExpertRecorder* recorder = variant == 0 ? nullptr : recorders[variant - 1].get();
    Timed* timer = variant == 0 ? nullptr : timed[variant - 1].get();
    runtime->Observe(timer);
    comm.tp->Barrier("bench");
    ++state->pass;
    const auto begin = Clock::now();
    if (timer) {
      timer->seconds = 0;
      timer->Time([&] { recorder->BeginPass(state->pass, tokens); });
    }
    for (const MoeLayer& layer : layers) {
      layer.Forward(*state, hidden.data() + first * kHidden, {groups, groups}, out.data());
      first = (first + tokens) % kRows;
    }
    if (timer) timer->Time([&] { recorder->EndPass(state->pass, {positions, rows, ids}); });
    return std::pair(SecondsSince(begin), timer ? timer->seconds : 0.0);
  };

  constexpr int kCount = std::size(kNames);
  std::vector<std::vector<double>> whole(kCount), inside(kCount);
  const auto start = Clock::now();
  for (int run = -1;; ++run) {
    for (int i = 0; i < kCount; ++i) {
      // Each run begins with the next variant, so that no variant always runs first.
      const int variant = (i + std::max(run, 0)) % kCount;
      const auto [seconds, recorder_seconds] = pass(variant);
      if (run < 0) continue;  // warm-up
      whole[variant].push_back(seconds);
      inside[variant].push_back(recorder_seconds);
    }
    const bool enough = run >= 5 && SecondsSince(start) > kSecondsPerCase;
    if (comm.tp->Broadcast(enough ? "enough" : "more") == "enough") break;
  }
  if (comm.mesh.rank() != 0) return;
  const double off = std::ranges::min(whole[0]);
  for (int i = 0; i < kCount; ++i) {
    const double fastest = std::ranges::min(whole[i]), recorder = Median(inside[i]);
    fmt::print(
        "{:3} tokens per rank  {:13} {:9.1f} us per pass  {:+6.2f} %   inside {:6.1f} us  {:6.3f} "
        "%\n",
        tokens, kNames[i], fastest * 1e6, (fastest / off - 1) * 100, recorder * 1e6,
        recorder / off * 100);
  }
  std::fflush(stdout);
}

}  // namespace

int Run(std::vector<int64_t> batches) {
  InitLog("info");
  if (batches.empty()) batches = {1, 8, 32};
  for (const int64_t tokens : batches) {
    const size_t bytes =
        RankComm::BytesPerRank(kMesh) + MoeSymmetricBytes(Options(), Shape(tokens), kMesh);
    RunRankThreads(kRanks, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
      const auto comm = RankComm::Create(std::move(arena), kMesh, rank);
      ThreadPool pool(1);
      RunRank(tokens, *comm, pool);
    });
  }
  return 0;
}

}  // namespace switchyard::bench

int main(int argc, char** argv) {
  std::vector<int64_t> batches;
  for (int i = 1; i < argc; ++i) batches.push_back(std::max(1L, std::atol(argv[i])));
  return switchyard::bench::Run(batches);
}
