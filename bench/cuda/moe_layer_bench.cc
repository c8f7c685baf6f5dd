// One MoE layer on the GPUs of this machine, with one rank thread per GPU. EP is the number of
// GPUs. Weights are random, in the shapes of DeepSeek-V3 (FP8 blocks) and Qwen3-30B-A3B (bfloat16).
// By default every rank holds as many experts as a rank of EP 8.
//
// Each case prints a line: the median of a replayed graph on rank 0, its stages, and the fraction
// of the roofline. The roofline is the larger of two times: reading the weights of the experts that
// have rows, and computing their products at the matrix units' rate.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/layer_device.h"
#include "bench/model_shapes.h"
#include "bench/timing.h"
#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/peer_memory.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "moe/cuda_moe.h"
#include "moe/layer.h"

namespace switchyard::bench {
namespace {

using cuda::CudaDevice;
using cuda::DeviceCount;
using cuda::Event;
using cuda::PeerMemory;

constexpr const char* kName = "moe-layer";
constexpr int kRuns = 15;
constexpr int kRanksOfExperts = 8;  // a rank holds 1/8 of a model's experts by default
constexpr const char* kStages[] = {"gather us",        "route us", "dispatch us",
                                   "shared+arrive us", "order us", "experts us",
                                   "combine us",       "sum us",   "scatter us"};
constexpr int kStageCount = std::size(kStages);

// The weights of one expert, which all experts share.
struct HostExpert {
  HostExpert(const ModelShape& shape, uint32_t seed) {
    std::mt19937 random(seed);
    const int64_t count = shape.hidden * shape.intermediate;
    for (std::vector<uint8_t>* matrix : {&gate, &up, &down}) {
      matrix->resize(count * (shape.fp8 ? 1 : 2));
      if (shape.fp8) {
        for (uint8_t& code : *matrix) code = static_cast<uint8_t>(random() & 0xf7);  // no NaN
      } else {
        auto* values = reinterpret_cast<BF16*>(matrix->data());
        for (int64_t i = 0; i < count; ++i)
          values[i] = ToBF16(static_cast<float>(random() % 2001) * 5e-5f - 0.05f);
      }
    }
    scales.assign(CeilDiv(shape.hidden, 128) * CeilDiv(shape.intermediate, 128), 2e-4f);
  }
  WeightView View(const std::vector<uint8_t>& data, const ModelShape& shape, int64_t n,
                  int64_t k) const {
    WeightView w;
    w.format = shape.fp8 ? WeightFormat::kFp8Block : WeightFormat::kBF16;
    w.data = data.data();
    w.scales = shape.fp8 ? scales.data() : nullptr;
    w.activation = shape.fp8 ? ActivationFormat::kFp8Group : ActivationFormat::kNone;
    w.stored_k = w.k = k;
    w.n = n;
    return w;
  }
  kernels::ExpertWeights Weights(const ModelShape& shape) const {
    kernels::ExpertWeights e;
    e.gate = View(gate, shape, shape.intermediate, shape.hidden);
    e.up = View(up, shape, shape.intermediate, shape.hidden);
    e.down = View(down, shape, shape.hidden, shape.intermediate);
    return e;
  }
  std::vector<uint8_t> gate, up, down;
  std::vector<float> scales;
};

struct Setup {
  const ModelShape& model;
  int ranks, experts_per_rank;
  std::vector<int64_t> tokens;
  const GpuMachine& machine;
  Report& report;

  int experts() const { return experts_per_rank * ranks; }
  std::string Describe(int64_t batch) const {
    return fmt::format("{} ranks {} experts {} tokens {}", model.name, ranks, experts(), batch);
  }
  MoeShape Shape() const {
    return {.hidden = model.hidden,
            .intermediate = model.intermediate,
            .num_experts = experts(),
            .top_k = std::min(model.top_k, experts()),
            .max_tokens = std::ranges::max(tokens),
            .has_shared = model.shared};
  }
  MoeOptions MoeFlags() const {
    MoeOptions options;
    options.a2a_backend = "deepep";
    options.fp8_group_activations = model.fp8;
    return options;
  }
  // Every rank has its own tokens, as with DP attention.
  MeshShape Mesh() const { return {.tp = ranks, .ep = ranks, .dp = ranks}; }
  size_t PeerBytes() const {
    return CudaMoePeerBytes(MoeFlags(), Shape(), Mesh(), DType::kBF16) + (size_t{1} << 20);
  }
};

void RunCase(const Setup& setup, int64_t tokens, const MoeLayer& layer, MoeState& state,
             CudaDevice& device, const float* x, float* y, RankComm& comm) {
  const std::vector<int64_t> counts(setup.ranks, tokens);
  const bool decode = tokens <= 128;
  const cudaStream_t stream = device.stream();
  std::vector<Event> marks(kStageCount + 1);
  const auto pass = [&] {
    const auto stage = [&](int i, auto run) {
      run();
      MarkEvent(marks[i + 1], stream);
    };
    MarkEvent(marks[0], stream);
    stage(0, [&] { layer.Start(state, x, counts, decode, y); });
    while (state.NextRound()) {
      stage(1, [&] { layer.Route(state); });
      stage(2, [&] { layer.BeginDispatch(state); });
      stage(3, [&] {
        if (state.in_first_round()) layer.RunShared(state);
        layer.EndDispatch(state);
      });
      stage(4, [&] { layer.PrePermute(state); });
      stage(5, [&] { layer.RunExperts(state); });
      stage(6, [&] {
        layer.BeginCombine(state);
        layer.RunDown(state);
      });
      stage(7, [&] { layer.EndCombine(state); });
    }
    stage(8, [&] { layer.Scatter(state); });
  };
  std::vector<std::vector<double>> times(kStageCount);
  for (int i = 0; i < kRuns + 3; ++i) {
    device.Run(static_cast<uint64_t>(tokens), pass);
    device.Synchronize();
    if (i < 3) continue;
    for (int s = 0; s < kStageCount; ++s)
      times[s].push_back(1e-3 * marks[s + 1].MillisecondsSince(marks[s]));
  }
  // Times the whole pass, without events between stages.
  const auto plain_key = static_cast<uint64_t>(tokens) + (uint64_t{1} << 32);
  const auto plain = [&] {
    layer.Forward(state, x, {counts, decode ? counts : std::vector<int64_t>(counts.size(), 0)}, y);
  };
  for (int i = 0; i < 3; ++i) device.Run(plain_key, plain);  // eager, captured, replayed
  device.Synchronize();
  comm.tp->Barrier("before a case");
  const Event begin, end;
  begin.Record(stream);
  for (int i = 0; i < kRuns; ++i) device.Run(plain_key, plain);
  end.Record(stream);
  device.Synchronize();
  const double total = 1e-3 * end.MillisecondsSince(begin) / kRuns;
  if (comm.mesh.rank() != 0) return;

  const ModelShape& m = setup.model;
  const double k = setup.Shape().top_k;
  const auto rows = k * static_cast<double>(tokens);  // rows of experts on each rank, on average
  const int local = setup.experts_per_rank;
  const double hit = local * (1 - std::pow(1 - 1.0 / local, rows));
  const double bytes = (hit + (m.shared ? 1 : 0)) * m.BytesOfExpert();
  const double flops =
      2 * (rows + (m.shared ? static_cast<double>(tokens) : 0.0)) * m.WeightsOfExpert();
  Result result = {.name = kName,
                   .shape = setup.Describe(tokens),
                   .seconds = total,
                   .flops = flops,
                   .bytes = bytes,
                   .limit = Roofline(bytes, setup.machine.bandwidth(), flops,
                                     m.fp8 ? setup.machine.fp8 : setup.machine.bf16)};
  for (int s = 0; s < kStageCount; ++s)
    result.more.push_back({kStages[s], Median(std::move(times[s])) * 1e6});
  setup.report.Add(std::move(result));
}

void RunRank(const Setup& setup, RankComm& comm) {
  const MoeShape shape = setup.Shape();
  const auto owner = LayerDevice(comm.mesh.rank() % DeviceCount(), shape);
  CudaDevice& device = CudaDevice::From(*owner);
  PeerMemory peers(comm, setup.PeerBytes(), std::chrono::seconds(20));
  device.AddCheck([&] { peers.CheckTimeouts(); });
  DeviceMoeContext context;
  context.mesh = comm.mesh;
  context.peers = &peers;
  context.device = owner.get();
  const std::shared_ptr<MoeBackend> backend = MakeCudaMoe(setup.MoeFlags(), shape, context);

  MoeLayerConfig config;
  config.hidden = shape.hidden;
  config.router = setup.model.Router(setup.experts());
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<BF16> router(shape.num_experts * shape.hidden);
  for (BF16& w : router) w = ToBF16(0.02f * normal(random));
  const HostExpert expert(setup.model, 2);
  MoeLayerWeights weights;
  weights.router.w.format = WeightFormat::kBF16;
  weights.router.w.data = router.data();
  weights.router.w.stored_k = weights.router.w.k = shape.hidden;
  weights.router.w.n = shape.num_experts;
  const Range own = ExpertsOfRank(shape.num_experts, comm.mesh.ep(), comm.mesh.ep_rank());
  weights.experts.assign(own.end - own.begin, expert.Weights(setup.model));
  weights.has_shared = setup.model.shared;
  if (weights.has_shared) weights.shared = expert.Weights(setup.model);
  const MoeLayer layer(config, weights, backend);
  const auto state = layer.MakeState();

  const auto x = RandomRows(device, shape.max_tokens * shape.hidden, 100 + comm.mesh.rank());
  const auto y = device.Allocate(shape.max_tokens * shape.hidden * sizeof(float));
  for (const int64_t tokens : setup.tokens) {
    if (comm.mesh.rank() == 0) setup.report.Start(kName, setup.Describe(tokens));
    comm.tp->Barrier("before a case");
    RunCase(setup, tokens, layer, *state, device, static_cast<float*>(x.get()),
            static_cast<float*>(y.get()), comm);
  }
  comm.tp->Barrier("after the cases");
}

}  // namespace

void CudaMoeLayer(const Options& options, Report& report) {
  const int ranks = CudaRanks(options, 1);
  const GpuMachine machine = MeasureGpuMachine(0, report);
  const std::vector<int64_t> default_tokens = {8, 128, 1024, 8192};
  for (const ModelShape& model : ModelShapes()) {
    if (options.model.empty() ? model.name == "olmoe-1b-7b" : options.model != model.name) continue;
    Setup setup = {.model = model,
                   .ranks = ranks,
                   .experts_per_rank = options.experts_per_rank > 0
                                           ? options.experts_per_rank
                                           : model.num_experts / kRanksOfExperts,
                   .tokens = {},
                   .machine = machine,
                   .report = report};
    for (const int64_t tokens : options.tokens.empty() ? default_tokens : options.tokens)
      // Token counts without duplicates, because a graph is recorded for each count.
      if (report.Selects(kName, setup.Describe(tokens)) &&
          std::ranges::find(setup.tokens, tokens) == setup.tokens.end())
        setup.tokens.push_back(tokens);
    if (setup.tokens.empty()) continue;
    RunRankThreads(ranks, RankComm::BytesPerRank(setup.Mesh()),
                   [&](int rank, std::shared_ptr<SharedArena> arena) {
                     const auto comm = RankComm::Create(std::move(arena), setup.Mesh(), rank);
                     RunRank(setup, *comm);
                   });
  }
}

}  // namespace switchyard::bench
