// The parts of a MoE layer whose experts are on one GPU and on the CPUs of its host
// (--device cuda,cpu), on both sides. Ranks are threads of this process: rank 0 has the GPU, rank 1
// all CPUs but one. Weights are random int4, each expert with memory of its own, in the shape of
// Qwen3-235B-A22B. A pass is a CUDA graph of some layers. Before each layer a kernel spins in the
// place of attention, so that the CPUs wait as they do in decode.
//
// Columns, in µs of a layer in which CPUs have rows:
//   route, dispatch, own experts, wait+sum   GPU, by events
//   rows to flags     CPUs, from the sight of the rows to the raised flags: permute, experts and
//                     flags are its parts
//   latency           time from the end of the dispatch kernel to the sums, minus "rows to flags":
//                     flags and polls in both directions, starts of kernels, reads over the link.
//                     It says nothing if the own experts take longer
//   between           CPUs, from the raised flags to the next wait for rows
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/delay.h"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/layer_device.h"
#include "bench/model_shapes.h"
#include "bench/timing.h"
#include "comm/device/communicator.h"
#include "comm/device/cuda/host_link.h"
#include "core/check.h"
#include "core/cpus.h"
#include "core/cuda/runtime.h"
#include "core/tensor.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/ops.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/cuda_moe.h"
#include "moe/layer.h"
#include "quant/quantize.h"

namespace switchyard::bench {
namespace {

using cuda::Check;
using cuda::CudaDevice;
using cuda::Event;

constexpr const char* kBenchName = "host-experts";
constexpr int kPassLayers = 16, kMarkedLayers = 4;  // every fourth layer is measured
constexpr int kWarmPasses = 4, kMeasuredPasses = 40;
constexpr uint64_t kAttentionNs = 100'000;

enum GpuPart { kRouted, kSentRows, kComputedOwn, kSummed, kGpuParts };
enum CpuPart { kAwaited, kPermutedRows, kComputedRows, kFlagged, kRest, kCpuParts };

// One layer of one pass.
template <int kParts>
using Sample = std::array<double, kParts>;

struct HostCase {
  ModelShape model;
  int on_cpu = 16;
  int64_t tokens = 1;
  bool awake = true;  // whether the threads of the CPUs stay awake, as they do in the engine

  std::string Describe() const {
    return fmt::format("{} int4 experts {}+{} tokens {} {}", model.name, model.num_experts - on_cpu,
                       on_cpu, tokens, awake ? "awake" : "asleep");
  }
  MeshShape Mesh() const {
    return {.tp = 2,
            .ep = 2,
            .dp = 2,
            .dense_tp = 1,
            .expert_ranks = 1,
            .expert_slots = {model.num_experts - on_cpu, on_cpu}};
  }
  MoeShape Shape() const {
    return {.hidden = model.hidden,
            .intermediate = model.intermediate,
            .num_experts = model.num_experts,
            .top_k = model.top_k,
            .max_tokens = tokens};
  }
  static MoeOptions Flags() {
    MoeOptions options;
    options.a2a_backend = "deepep";
    options.deepep_mode = "normal";
    options.combine_long_seq = true;
    options.host_experts = true;
    options.row_dtype = DType::kBF16;
    return options;
  }
  MoeLayerConfig Layer() const {
    MoeLayerConfig config;
    config.hidden = model.hidden;
    config.router = model.Router(model.num_experts);
    return config;
  }
  std::vector<int64_t> Counts() const { return {tokens, 0}; }
};

// Weights of `local` experts. Each one has memory of its own if `separate`, else all share it.
class HostCaseWeights {
 public:
  HostCaseWeights(const HostCase& c, int local, bool separate, ActivationFormat rows) {
    const ModelShape& m = c.model;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(m.intermediate * m.hidden);
    for (float& v : values) v = normal(random);
    up_ = Quantize(WeightFormat::kInt4Group, values, m.intermediate, m.hidden);
    down_ = Quantize(WeightFormat::kInt4Group, values, m.hidden, m.intermediate);
    up_.activation = down_.activation = rows;
    router_.resize(m.num_experts * m.hidden);
    for (float& v : router_) v = normal(random);
    layer_.router.w = Quantize(WeightFormat::kF32, router_, m.num_experts, m.hidden);
    for (int e = 0; e < local; ++e) {
      kernels::ExpertWeights expert;
      expert.gate = separate ? Copy(up_) : up_;
      expert.up = separate ? Copy(up_) : up_;
      expert.down = separate ? Copy(down_) : down_;
      layer_.experts.push_back(expert);
    }
  }
  const MoeLayerWeights& layer() const { return layer_; }

 private:
  WeightView Copy(WeightView w) {
    const int64_t bytes = w.n * w.k / 2;
    Tensor memory = Tensor::Empty(DType::kU8, {bytes});
    std::memcpy(memory.mutable_raw(), w.data, static_cast<size_t>(bytes));
    w.data = memory.raw();
    copies_.push_back(std::move(memory));
    return w;
  }

  WeightView up_, down_;
  std::vector<float> router_;
  std::vector<Tensor> copies_;
  MoeLayerWeights layer_;
};

// A group of one member.
class Alone : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void AllReduceSum(float*, size_t) override {}
  void AllGatherV(const void*, void*, std::span<const size_t>) override { CHECK(false); }
  void ReduceScatterV(const float*, float*, std::span<const size_t>) override { CHECK(false); }
};

bool IsMarked(int layer) {
  constexpr int kEach = kPassLayers / kMarkedLayers;
  return layer % kEach == kEach - 1;
}

// Runs the stages from dispatch to the experts' outputs.
void RunToOutputs(const MoeLayer& layer, MoeState& state) {
  layer.EndDispatch(state);
  layer.PrePermute(state);
  layer.RunExperts(state);
  layer.PostPermute(state);
  layer.BeginCombine(state);
  layer.RunDown(state);
}

struct GpuResults {
  std::vector<Sample<kGpuParts>> layers;
  double pass = 0;  // seconds of a pass without events
};

void RunGpuRank(const HostCase& c, RankComm& comm, GpuResults* results) {
  const MoeShape shape = c.Shape();
  const auto owner = LayerDevice(0, shape);
  CudaDevice& device = CudaDevice::From(*owner);
  cuda::HostLink link(*comm.memory, std::chrono::seconds(20));
  device.AddCheck([&link] { link.CheckTimeouts(); });
  device.SetWait([&link](cudaEvent_t event) { link.Wait(event); });
  Alone alone;
  DeviceMoeContext context;
  context.mesh = comm.mesh;
  context.groups = {.tp = &alone, .ep = &alone, .moe_tp = &alone, .attn_tp = &alone};
  context.link = &link;
  context.device = owner.get();
  const std::shared_ptr<MoeBackend> backend = MakeCudaMoe(HostCase::Flags(), shape, context);
  const HostCaseWeights weights(c, c.model.num_experts - c.on_cpu, /*separate=*/false,
                                ActivationFormat::kNone);
  const MoeLayer layer(c.Layer(), weights.layer(), backend);
  const auto state = layer.MakeState();

  const int64_t elements = c.tokens * c.model.hidden;
  const auto x = RandomRows(device, kPassLayers * elements, 3);
  const auto y = owner->Allocate(elements * sizeof(float));

  const cudaStream_t stream = device.stream();
  const std::vector<int64_t> counts = c.Counts();
  std::vector<std::array<Event, 1 + kGpuParts>> marks(kMarkedLayers);
  const auto pass = [&](bool marked) {
    int measured = 0;
    for (int i = 0; i < kPassLayers; ++i) {
      Check(Delay(kAttentionNs, stream), "delay");
      const bool marks_layer = marked && IsMarked(i);
      const auto mark = [&](int part) {
        if (marks_layer) MarkEvent(marks[measured][part], stream);
      };
      mark(0);
      layer.Start(*state, static_cast<float*>(x.get()) + i * elements, counts,
                  /*decode=*/true, static_cast<float*>(y.get()));
      while (state->NextRound()) {
        layer.Route(*state);
        mark(1 + kRouted);
        layer.BeginDispatch(*state);
        mark(1 + kSentRows);
        RunToOutputs(layer, *state);
        mark(1 + kComputedOwn);
        layer.EndCombine(*state);
      }
      layer.Scatter(*state);
      mark(1 + kSummed);
      measured += marks_layer ? 1 : 0;
    }
  };
  const auto run = [&](bool marked) {
    state->BeginPass(c.tokens, 0);
    device.Run(marked ? 1 : 2, [&] { pass(marked); });
    device.Synchronize();
  };
  comm.tp->Barrier("before the passes");
  for (int i = 0; i < kWarmPasses + kMeasuredPasses; ++i) {
    run(/*marked=*/true);
    for (int l = 0; i >= kWarmPasses && l < kMarkedLayers; ++l) {
      Sample<kGpuParts>& sample = results->layers.emplace_back();
      for (int part = 0; part < kGpuParts; ++part)
        sample[part] = 1e-3 * marks[l][part + 1].MillisecondsSince(marks[l][part]);
    }
  }
  for (int i = 0; i < kWarmPasses; ++i) run(/*marked=*/false);
  std::vector<double> times;
  for (int i = 0; i < kMeasuredPasses; ++i) {
    const auto begin = Clock::now();
    run(/*marked=*/false);
    times.push_back(SecondsSince(begin));
  }
  results->pass = Median(std::move(times));
  comm.tp->Barrier("after the passes");
  device.ClearGraphs();
}

struct CpuResults {
  std::vector<Sample<kCpuParts>> layers;
  std::vector<int64_t> rows;  // of the experts of the CPUs in these layers
};

void RunCpuRank(const HostCase& c, RankComm& comm, CpuResults* results) {
  CpuList cpus = AllowedCpus();
  if (cpus.size() > 1) cpus.erase(cpus.begin());  // of the thread that launches kernels
  ThreadPool pool(static_cast<int>(cpus.size()), cpus);
  const auto backend = MakeCpuMoe(HostCase::Flags(), c.Shape(), comm, pool);
  if (!c.awake) pool.StayAwake({});
  const bool four_bit = kernels::HasFourBitProducts(kernels::ActiveIsa());
  const HostCaseWeights weights(c, c.on_cpu, /*separate=*/true,
                                four_bit ? ActivationFormat::kInt8Group : ActivationFormat::kNone);
  const MoeLayer layer(c.Layer(), weights.layer(), backend);
  const auto state = layer.MakeState();
  const std::vector<int64_t> counts = c.Counts();
  std::vector<float> none(c.model.hidden);
  comm.tp->Barrier("before the passes");
  constexpr int kAllPasses = 2 * (kWarmPasses + kMeasuredPasses);
  for (int pass = 0; pass < kAllPasses; ++pass) {
    for (int i = 0; i < kPassLayers; ++i) {
      Sample<kCpuParts> sample{};
      auto last = Clock::now();
      const auto part_ends = [&](CpuPart part) {
        const auto now = Clock::now();
        sample[part] += std::chrono::duration<double>(now - last).count();
        last = now;
      };
      layer.Start(*state, none.data(), counts, /*decode=*/true, none.data());
      while (state->NextRound()) {
        layer.Route(*state);
        layer.BeginDispatch(*state);
        part_ends(kRest);
        layer.EndDispatch(*state);
        part_ends(kAwaited);
        layer.PrePermute(*state);
        part_ends(kPermutedRows);
        layer.RunExperts(*state);
        part_ends(kComputedRows);
        layer.PostPermute(*state);
        layer.BeginCombine(*state);
        layer.RunDown(*state);
        part_ends(kFlagged);
        layer.EndCombine(*state);
      }
      layer.Scatter(*state);
      part_ends(kRest);
      if (pass < kWarmPasses || pass >= kWarmPasses + kMeasuredPasses || !IsMarked(i)) continue;
      results->layers.push_back(sample);
      results->rows.push_back(static_cast<const CpuMoeState&>(*state).grouped.num_rows);
    }
  }
  comm.tp->Barrier("after the passes");
}

void AddResult(const HostCase& c, const GpuResults& gpu, const CpuResults& cpu, Report& report) {
  CHECK_EQ(gpu.layers.size(), cpu.layers.size());
  std::array<std::vector<double>, kGpuParts> on_gpu;
  std::array<std::vector<double>, kCpuParts> on_cpu;
  std::vector<double> busy, latency, layers;
  double rows = 0;
  for (size_t i = 0; i < gpu.layers.size(); ++i) {
    rows += static_cast<double>(cpu.rows[i]) / static_cast<double>(gpu.layers.size());
    if (cpu.rows[i] == 0) continue;
    const Sample<kGpuParts>& g = gpu.layers[i];
    const Sample<kCpuParts>& s = cpu.layers[i];
    for (int part = 0; part < kGpuParts; ++part) on_gpu[part].push_back(g[part]);
    for (int part = 0; part < kCpuParts; ++part) on_cpu[part].push_back(s[part]);
    busy.push_back(s[kPermutedRows] + s[kComputedRows] + s[kFlagged]);
    latency.push_back(g[kComputedOwn] + g[kSummed] - busy.back());
    layers.push_back(g[kRouted] + g[kSentRows] + g[kComputedOwn] + g[kSummed]);
  }
  if (layers.empty()) return report.Note("no layer had rows for the CPUs; want more experts there");
  const auto us = [](std::vector<double> values) { return 1e6 * Median(std::move(values)); };
  Result result = {.name = kBenchName, .shape = c.Describe(), .seconds = Median(layers)};
  result.more = {{"mean of all layers us", 1e6 * gpu.pass / kPassLayers - 1e-3 * kAttentionNs},
                 {"route us", us(on_gpu[kRouted])},
                 {"dispatch us", us(on_gpu[kSentRows])},
                 {"own experts us", us(on_gpu[kComputedOwn])},
                 {"wait+sum us", us(on_gpu[kSummed])},
                 {"CPU rows to flags us", us(busy)},
                 {"permute us", us(on_cpu[kPermutedRows])},
                 {"experts us", us(on_cpu[kComputedRows])},
                 {"flags us", us(on_cpu[kFlagged])},
                 {"latency us", us(latency)},
                 {"CPU waits us", us(on_cpu[kAwaited])},
                 {"between us", us(on_cpu[kRest])},
                 {"CPU rows", rows}};
  report.Add(std::move(result));
}

}  // namespace

void HostExpertsBench(const Options& options, Report& report) {
  CudaRanks({}, 1);
  HostCase c{.model = {"qwen3-235b-a22b", 4096, 1536, 128, 8, false, false}};
  for (const ModelShape& model : ModelShapes())
    if (model.name == options.model) c.model = model;
  if (options.experts_per_rank > 0)
    c.on_cpu = std::min(options.experts_per_rank, c.model.num_experts - 1);
  const std::vector<int64_t> some = {1, 8};
  for (const int64_t tokens : options.tokens.empty() ? some : options.tokens)
    for (const bool awake : {false, true}) {
      c.tokens = tokens;
      c.awake = awake;
      if (!report.Selects(kBenchName, c.Describe())) continue;
      report.Start(kBenchName, c.Describe());
      const size_t bytes = RankComm::BytesPerRank(c.Mesh()) +
                           MoeSymmetricBytes(HostCase::Flags(), c.Shape(), c.Mesh());
      GpuResults gpu;
      CpuResults cpu;
      RunRankThreads(2, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), c.Mesh(), rank);
        rank == 0 ? RunGpuRank(c, *comm, &gpu) : RunCpuRank(c, *comm, &cpu);
      });
      AddResult(c, gpu, cpu, report);
    }
}

}  // namespace switchyard::bench
