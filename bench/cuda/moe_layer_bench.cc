// One MoE layer on the GPUs of this machine, a rank on each as a thread: EP is their number.
// Made-up weights in the shapes of DeepSeek-V3 (FP8 blocks) and Qwen3-30B-A3B (bfloat16); every
// rank holds as many experts as one of EP 8 would.
//
//   moe_layer_bench [--ranks N] [--experts-per-rank 32] [--tokens 8,128,1024,8192] [--model NAME]
//
// A line for each case: median of a replayed graph on rank 0, its stages, and the fraction of what
// the machine allows: weights of the experts that got rows at the bandwidth of a plain copy, or the
// products at the matrix units' rate, whichever takes longer.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/peer_memory.h"
#include "core/cuda/runtime.h"
#include "kernels/cuda/cuda_device.h"
#include "moe/cuda/moe_layer.h"

namespace switchyard::cuda {
namespace {

constexpr int kRuns = 15;
constexpr const char* kStages[] = {"gather",  "route",   "dispatch", "shared+arrive", "order",
                                   "experts", "combine", "sum",      "scatter"};
constexpr int kStageCount = std::size(kStages);

struct ModelShape {
  std::string name;
  int64_t hidden, intermediate;
  int experts_at_ep8;
  bool fp8, shared;
  double tflops;  // of a 8192³ product on an H200 (docs/notes/gpu.md)
};
const ModelShape kModels[] = {{"deepseek-v3", 7168, 2048, 32, true, true, 1476},
                              {"qwen3-30b-a3b", 2048, 768, 16, false, false, 787}};

struct Arguments {
  int ranks = DeviceCount();
  int experts_per_rank = 0;  // 0: as EP 8
  std::vector<int64_t> tokens = {8, 128, 1024, 8192};
  std::string model;
};

// One expert's numbers; all experts are the same ones.
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

double MeasureBandwidth(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{1} << 30;
  const DeviceMemory from(kBytes), to(kBytes);
  const Event begin, end;
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    begin.Record(stream);
    Check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream),
          "copy");
    end.Record(stream);
    end.Wait();
    best = std::max(best, 2e-6 * kBytes / end.MillisecondsSince(begin));
  }
  return best;  // GB/s read and written
}

// Events that a recorded graph passes as well.
void Mark(const Event& event, cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  Check(cudaStreamIsCapturing(stream, &status), "capture status");
  Check(cudaEventRecordWithFlags(event.get(), stream,
                                 status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault
                                                                       : cudaEventRecordExternal),
        "event");
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Setup {
  const ModelShape& model;
  const Arguments& arguments;
  int experts() const {
    return (arguments.experts_per_rank ? arguments.experts_per_rank : model.experts_at_ep8) *
           arguments.ranks;
  }
  MoeShape Shape() const {
    return {.hidden = model.hidden,
            .intermediate = model.intermediate,
            .num_experts = experts(),
            .top_k = 8,
            .max_tokens = std::ranges::max(arguments.tokens),
            .has_shared = model.shared};
  }
  MoeOptions Options() const {
    MoeOptions options;
    options.a2a_backend = "deepep";
    options.fp8_group_activations = model.fp8;
    return options;
  }
  // Tokens are every rank's own, as with DP attention.
  MeshShape Mesh() const {
    return {.tp = arguments.ranks, .ep = arguments.ranks, .dp = arguments.ranks};
  }
  size_t PeerBytes() const {
    return CudaMoePeerBytes(Options(), Shape(), Mesh(), DType::kBF16) + (size_t{1} << 20);
  }
};

void RunCase(const Setup& setup, int64_t tokens, CudaMoeLayer& layer, CudaDevice& device,
             const float* x, float* y, double bandwidth, RankComm& comm) {
  const std::vector<int64_t> counts(setup.arguments.ranks, tokens);
  const bool decode = tokens <= 128;
  const cudaStream_t stream = device.stream();
  std::vector<Event> marks(kStageCount + 1);
  const auto pass = [&] {
    CudaMoeBatch& batch = layer.batch();
    layer.StartBatch(x, counts, decode, y, &batch);
    const auto stage = [&](int i, auto run) {
      run();
      Mark(marks[i + 1], stream);
    };
    Mark(marks[0], stream);
    stage(0, [&] { layer.Gather(batch); });
    while (batch.NextRound()) {
      stage(1, [&] { layer.Route(batch); });
      stage(2, [&] { layer.BeginDispatch(batch); });
      stage(3, [&] { layer.EndDispatch(batch); });
      stage(4, [&] { layer.PrePermute(batch); });
      stage(5, [&] { layer.RunExperts(batch); });
      stage(6, [&] { layer.BeginCombine(batch); });
      stage(7, [&] { layer.EndCombine(batch); });
    }
    stage(8, [&] { layer.Scatter(batch); });
  };
  std::vector<std::vector<double>> times(kStageCount + 1);
  for (int i = 0; i < kRuns + 3; ++i) {
    device.Run(static_cast<uint64_t>(tokens), pass);
    device.Synchronize();
    if (i < 3) continue;
    for (int s = 0; s < kStageCount; ++s)
      times[s].push_back(1e3 * marks[s + 1].MillisecondsSince(marks[s]));
    times[kStageCount].push_back(1e3 * marks[kStageCount].MillisecondsSince(marks[0]));
  }
  // And without marks, one after the other.
  const auto plain_key = static_cast<uint64_t>(tokens) + (uint64_t{1} << 32);
  const auto plain = [&] {
    layer.Forward(x, {counts, decode ? counts : std::vector<int64_t>(counts.size(), 0)}, y);
  };
  for (int i = 0; i < 3; ++i) device.Run(plain_key, plain);  // as it is, recorded, replayed
  device.Synchronize();
  comm.tp->Barrier("before a case");
  const Event begin, end;
  begin.Record(stream);
  for (int i = 0; i < kRuns; ++i) device.Run(plain_key, plain);
  end.Record(stream);
  device.Synchronize();
  const double total = 1e3 * end.MillisecondsSince(begin) / kRuns;
  if (comm.mesh.rank() != 0) return;

  const ModelShape& m = setup.model;
  const int local = setup.experts() / setup.arguments.ranks;
  const double rows = 8.0 * static_cast<double>(tokens);  // on each rank, in the mean
  const double hit = local * (1 - std::pow(1 - 1.0 / local, rows));
  const double expert_bytes = 3.0 * m.hidden * m.intermediate * (m.fp8 ? 1 : 2);
  const double weight_us = hit * expert_bytes / bandwidth * 1e-3;
  const double math_us = rows * 6.0 * m.hidden * m.intermediate / m.tflops * 1e-6;
  const double roofline = std::max(weight_us, math_us);
  std::printf("%-14s ep %d, %d experts a rank, %5lld tokens: %8.1f us (%2.0f %% of %7.1f us, %s) |",
              m.name.c_str(), setup.arguments.ranks, local, static_cast<long long>(tokens), total,
              100 * roofline / total, roofline, weight_us > math_us ? "weights" : "products");
  for (int s = 0; s < kStageCount; ++s) std::printf(" %s %.1f", kStages[s], Median(times[s]));
  std::printf("\n");
  std::fflush(stdout);
}

void RunRank(const Setup& setup, RankComm& comm) {
  const MoeShape shape = setup.Shape();
  const auto owner = kernels::MakeCudaDevice({.index = comm.mesh.rank() % DeviceCount(),
                                              .dtype = DType::kBF16,
                                              .max_tokens = shape.max_tokens,
                                              .max_sequences = 1,
                                              .max_pages = 1});
  CudaDevice& device = CudaDevice::From(*owner);
  const double bandwidth = MeasureBandwidth(device.stream());
  PeerMemory peers(comm, setup.PeerBytes(), std::chrono::seconds(20));
  device.AddCheck([&] { peers.CheckWaits(); });
  DeviceMoeContext context;
  context.mesh = comm.mesh;
  context.peers = &peers;
  context.device = owner.get();
  CudaMoeRuntime runtime(setup.Options(), shape, context);

  MoeLayerConfig config;
  config.hidden = shape.hidden;
  config.router = {.num_experts = shape.num_experts,
                   .top_k = 8,
                   .scoring = setup.model.fp8 ? RouterConfig::Scoring::kSigmoid
                                              : RouterConfig::Scoring::kSoftmax,
                   .renormalize = true};
  if (setup.model.fp8) {
    config.router.num_groups = 8;
    config.router.topk_groups = 4;
    config.router.group_score = RouterConfig::GroupScore::kTop2Sum;
  }
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
  weights.experts.assign(runtime.local_experts(), expert.Weights(setup.model));
  weights.has_shared = setup.model.shared;
  if (weights.has_shared) weights.shared = expert.Weights(setup.model);
  CudaMoeLayer layer(config, weights, runtime);

  std::mt19937 own_random(100 + comm.mesh.rank());
  std::vector<float> hidden(shape.max_tokens * shape.hidden);
  for (float& v : hidden) v = normal(own_random);
  const auto x = device.Allocate(hidden.size() * sizeof(float));
  const auto y = device.Allocate(hidden.size() * sizeof(float));
  device.CopyIn(x.get(), hidden.data(), hidden.size() * sizeof(float));
  device.Synchronize();
  if (comm.mesh.rank() == 0)
    std::printf("%s: a plain copy reads and writes %.0f GB/s\n", setup.model.name.c_str(),
                bandwidth);
  for (const int64_t tokens : setup.arguments.tokens) {
    comm.tp->Barrier("before a case");
    RunCase(setup, tokens, layer, device, static_cast<float*>(x.get()),
            static_cast<float*>(y.get()), bandwidth, comm);
  }
  comm.tp->Barrier("after the cases");
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--ranks") arguments.ranks = std::atoi(argv[i + 1]);
    if (name == "--experts-per-rank") arguments.experts_per_rank = std::atoi(argv[i + 1]);
    if (name == "--model") arguments.model = argv[i + 1];
    if (name != "--tokens") continue;
    arguments.tokens.clear();
    for (char* token = std::strtok(argv[i + 1], ","); token; token = std::strtok(nullptr, ","))
      arguments.tokens.push_back(std::atoll(token));
  }
  return arguments;
}

void Run(const Arguments& arguments) {
  for (const ModelShape& model : kModels) {
    if (!arguments.model.empty() && arguments.model != model.name) continue;
    const Setup setup{model, arguments};
    RunRankThreads(arguments.ranks, RankComm::BytesPerRank(setup.Mesh()),
                   [&](int rank, std::shared_ptr<SharedArena> arena) {
                     const auto comm = RankComm::Create(std::move(arena), setup.Mesh(), rank);
                     RunRank(setup, *comm);
                   });
  }
}

}  // namespace
}  // namespace switchyard::cuda

int main(int argc, char** argv) {
  using namespace switchyard::cuda;
  if (DeviceCount() == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 2;
  }
  try {
    Run(Parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
