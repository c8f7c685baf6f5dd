// One MoE layer on the CPUs of this host. Each rank is a thread with its own worker threads, its
// own tokens and its share of generated experts. Every expert has its own weights, as in a model,
// so that weights are read from memory and not from cache. Each case prints the median time of a
// pass, from the start of the first rank to the end of the last, and the median time of each stage
// on rank 0. After each pass a part of the same weights is read without computing, which measures
// the memory bandwidth at that time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/benches.h"
#include "bench/cpu/ceilings.h"
#include "bench/cpu/cores.h"
#include "bench/cpu/memory_loops.h"
#include "bench/model_shapes.h"
#include "bench/timing.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/ops.h"
#include "kernels/roofline.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/layer.h"
#include "quant/quantize.h"

namespace switchyard::bench {
namespace {

constexpr const char* kName = "moe-layer";
constexpr const char* kStages[] = {
    "gather us",  "route us",        "dispatch us", "shared+arrive us", "permute us",
    "experts us", "permute back us", "combine us",  "sum us",           "scatter us"};
constexpr int kStageCount = std::size(kStages);
constexpr int kFewestRuns = 3, kMaxRuns = 200;
constexpr double kSecondsPerCase = 1.0;
// Number of different positions at which the tokens of a pass begin. If all passes had the same
// tokens, they would select the same experts, whose weights would stay in the caches.
constexpr int64_t kDifferentTokens = 512;
// Number of matrices per thread that are read without computing after each pass. A matrix has 2 to
// 14 MiB.
constexpr int64_t kReadsPerThread = 8;

// Formats of experts' weights and of the rows multiplied with them.
struct Formats {
  const char* name;
  WeightFormat weights;
  ActivationFormat rows;
  double bytes;  // per weight, without scales
  double peak;   // FLOP rate of products in this format
};

// The formats of a model's experts, with the row formats that the engine selects for them
// (--quantize-activations auto).
std::vector<Formats> FormatsOf(const ModelShape& model, const CpuCeilings& ceilings) {
  using A = ActivationFormat;
  using W = WeightFormat;
  if (model.fp8) return {{"fp8 blocks", W::kFp8Block, A::kNone, 1, ceilings.peak}};
  const bool pairs = kernels::HasBFloat16Products(kernels::ActiveIsa());
  const bool four_bit = kernels::HasFourBitProducts(kernels::ActiveIsa());
  const double four_bit_peak = four_bit ? ceilings.int8_peak : ceilings.peak;
  return {{"bfloat16", W::kBF16, pairs ? A::kBFloat16 : A::kNone, 2,
           pairs ? ceilings.bf16_peak : ceilings.peak},
          {"int8", W::kInt8Channel, A::kInt8Token, 1, ceilings.int8_peak},
          {"int4", W::kInt4Group, four_bit ? A::kInt8Group : A::kNone, 0.5, four_bit_peak},
          {"mxfp4", W::kMxfp4, four_bit ? A::kInt8Group : A::kNone, 0.5, four_bit_peak}};
}

struct Setup {
  const ModelShape& model;
  Formats formats;
  int ranks, threads;  // per rank
  int experts;         // of all ranks
  std::vector<int64_t> tokens;
  Report& report;
  std::shared_ptr<const MoeBackends> backends;

  std::string Describe(int64_t batch) const {
    return fmt::format("{} {} ranks {} experts {} tokens {}", model.name, formats.name, ranks,
                       experts, batch);
  }
  MoeShape Shape() const {
    return {.hidden = model.hidden,
            .intermediate = model.intermediate,
            .num_experts = experts,
            .top_k = std::min(model.top_k, experts),
            .max_tokens = std::ranges::max(tokens),
            .has_shared = model.shared};
  }
  static MoeOptions Options() {
    MoeOptions options;
    options.a2a_backend = "deepep";
    options.row_dtype = DType::kBF16;
    return options;
  }
  // Every rank has its own batch, as with DP attention.
  MeshShape Mesh() const { return {.tp = ranks, .ep = ranks, .dp = ranks}; }
};

// The weights of one rank. Each matrix has its own memory; all have the same values.
class Weights {
 public:
  Weights(const Setup& setup, int local_experts) : setup_(setup) {
    const ModelShape& m = setup.model;
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    std::vector<float> values(m.intermediate * m.hidden);
    for (float& v : values) v = normal(random);
    up_ = Quantize(setup.formats.weights, values, m.intermediate, m.hidden);
    down_ = Quantize(setup.formats.weights, values, m.hidden, m.intermediate);
    up_.activation = down_.activation = setup.formats.rows;
    router_.resize(setup.experts * m.hidden);
    for (float& v : router_) v = normal(random);
    layer_.router.w = Quantize(WeightFormat::kF32, router_, setup.experts, m.hidden);
    for (int e = 0; e < local_experts; ++e) layer_.experts.push_back(Expert());
    layer_.has_shared = m.shared;
    if (m.shared) layer_.shared = Expert();
  }
  const MoeLayerWeights& layer() const { return layer_; }
  const std::vector<Tensor>& matrices() const { return copies_; }

 private:
  WeightView Copy(WeightView w) {
    const auto bytes = static_cast<int64_t>(static_cast<double>(w.n * w.k) * setup_.formats.bytes);
    Tensor memory = Tensor::Empty(DType::kU8, {bytes});
    std::memcpy(memory.mutable_raw(), w.data, bytes);
    w.data = memory.raw();
    copies_.push_back(std::move(memory));
    return w;
  }
  kernels::ExpertWeights Expert() {
    kernels::ExpertWeights expert;
    expert.gate = Copy(up_);
    expert.up = Copy(up_);
    expert.down = Copy(down_);
    return expert;
  }

  const Setup& setup_;
  WeightView up_, down_;
  std::vector<float> router_;
  std::vector<Tensor> copies_;
  MoeLayerWeights layer_;
};

// One rank's part; rank 0 reports.
class Rank {
 public:
  Rank(const Setup& setup, RankComm& comm, ThreadPool& pool)
      : setup_(setup),
        comm_(comm),
        pool_(pool),
        runtime_(MakeCpuMoe(Setup::Options(), setup.Shape(), comm, pool, setup.backends)),
        weights_(setup, runtime_->experts().LocalExperts(comm.mesh.ep_rank())),
        layer_(Config(setup), weights_.layer(), runtime_) {
    std::mt19937 random(100 + comm.mesh.rank());
    std::normal_distribution<float> normal;
    const int64_t most = setup.Shape().max_tokens;
    hidden_.resize((most + kDifferentTokens) * setup.model.hidden);
    for (float& v : hidden_) v = normal(random);
    out_.resize(most * setup.model.hidden);
  }

  void Run(int64_t tokens) {
    const std::vector<int64_t> counts(setup_.ranks, tokens);
    std::vector<double> passes, reads;
    std::array<std::vector<double>, kStageCount> stages;
    const auto start = Clock::now();
    for (int run = -1; run < kMaxRuns; ++run) {
      std::array<double, kStageCount> times{};
      comm_.tp->Barrier("bench");
      const auto begin = Clock::now();
      Pass(counts, times);
      const double seconds = GroupTime(begin);
      if (run >= 0) passes.push_back(seconds);
      const double rate = PlainReads();
      if (run >= 0) reads.push_back(rate);
      for (int s = 0; run >= 0 && s < kStageCount; ++s) stages[s].push_back(times[s]);
      const bool enough = run + 1 >= kFewestRuns && SecondsSince(start) > kSecondsPerCase;
      if (comm_.tp->Broadcast(enough ? "enough" : "more") == "enough") break;
    }
    if (comm_.mesh.rank() == 0)
      Add(tokens, Median(std::move(passes)), Median(std::move(reads)), stages);
  }

 private:
  static MoeLayerConfig Config(const Setup& setup) {
    MoeLayerConfig config;
    config.hidden = setup.model.hidden;
    config.router = setup.model.Router(setup.experts);
    return config;
  }

  void Pass(const std::vector<int64_t>& counts, std::array<double, kStageCount>& times) {
    MoeState& batch = *state_;
    first_token_ = (first_token_ + counts[0]) % kDifferentTokens;
    const auto stage = [&](int i, auto run) {
      const auto begin = Clock::now();
      run();
      times[i] += SecondsSince(begin);
    };
    stage(0, [&] {
      layer_.Start(batch, hidden_.data() + first_token_ * setup_.model.hidden, counts,
                   /*decode=*/counts[0] <= 128, out_.data());
    });
    while (batch.NextRound()) {
      stage(1, [&] { layer_.Route(batch); });
      stage(2, [&] { layer_.BeginDispatch(batch); });
      stage(3, [&] {
        if (batch.in_first_round()) layer_.RunShared(batch);
        layer_.EndDispatch(batch);
      });
      stage(4, [&] { layer_.PrePermute(batch); });
      stage(5, [&] { layer_.RunExperts(batch); });
      stage(6, [&] { layer_.PostPermute(batch); });
      stage(7, [&] {
        layer_.BeginCombine(batch);
        layer_.RunDown(batch);
      });
      stage(8, [&] { layer_.EndCombine(batch); });
    }
    stage(9, [&] { layer_.Scatter(batch); });
  }

  // Bytes per second at which all ranks together read a part of their weights. Each call reads the
  // next matrices. All threads of a rank read each of its matrices together.
  double PlainReads() {
    const std::vector<Tensor>& matrices = weights_.matrices();
    const int64_t count =
        std::min<int64_t>(std::ssize(matrices), kReadsPerThread * pool_.num_threads());
    std::vector<std::span<const std::byte>> parts;
    double bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Tensor& m = matrices[next_read_++ % std::ssize(matrices)];
      parts.emplace_back(static_cast<const std::byte*>(m.raw()), m.num_bytes());
      bytes += static_cast<double>(m.num_bytes());
    }
    comm_.tp->Barrier("bench");
    const auto start = Clock::now();
    const int64_t threads = pool_.num_threads();
    pool_.Run(threads, [&](int64_t thread) {
      for (const auto& part : parts) {
        const auto all = std::ssize(part);
        const int64_t begin = all * thread / threads, end = all * (thread + 1) / threads;
        ReadLines(part.data() + begin, end - begin, kernels::kReadPrefetchDistance);
      }
    });
    return bytes * setup_.ranks / GroupTime(start);
  }

  // Seconds from the start of the first rank to the end of the last. Each rank calls this at its
  // end with its own start.
  double GroupTime(Clock::time_point begin) const {
    using Times = std::array<Clock::rep, 2>;
    const Times mine = {begin.time_since_epoch().count(), Clock::now().time_since_epoch().count()};
    std::vector<Times> all(comm_.tp->size());
    comm_.tp->AllGather(&mine, all.data(), sizeof mine);
    Times span = mine;
    for (const Times& times : all)
      span = {std::min(span[0], times[0]), std::max(span[1], times[1])};
    return std::chrono::duration<double>(Clock::duration(span[1] - span[0])).count();
  }

  void Add(int64_t tokens, double seconds, double bandwidth,
           std::array<std::vector<double>, kStageCount>& stages) const {
    const ModelShape& m = setup_.model;
    const auto all_tokens = static_cast<double>(tokens * setup_.ranks);
    const double k = setup_.Shape().top_k;
    // Expected number of experts with tokens under uniform routing, plus the shared expert of each
    // rank.
    const double hit = setup_.experts * (1 - std::pow(1 - k / setup_.experts, all_tokens)) +
                       (m.shared ? setup_.ranks : 0);
    const double bytes = hit * m.WeightsOfExpert() * setup_.formats.bytes;
    const double flops = 2 * all_tokens * (k + (m.shared ? 1 : 0)) * m.WeightsOfExpert();
    Result result = {.name = kName,
                     .shape = setup_.Describe(tokens),
                     .seconds = seconds,
                     .flops = flops,
                     .bytes = bytes,
                     .limit = Roofline(bytes, bandwidth, flops, setup_.formats.peak),
                     .more = {{"plain reads GB/s", bandwidth * 1e-9}}};
    for (int s = 0; s < kStageCount; ++s)
      result.more.push_back({kStages[s], Median(std::move(stages[s])) * 1e6});
    setup_.report.Add(std::move(result));
  }

  const Setup& setup_;
  RankComm& comm_;
  ThreadPool& pool_;
  std::shared_ptr<CpuMoeBackend> runtime_;
  Weights weights_;
  MoeLayer layer_;
  std::unique_ptr<MoeState> state_ = layer_.MakeState();
  std::vector<float> hidden_;  // [most tokens + kDifferentTokens, H]
  std::vector<float> out_;     // [most tokens, H]
  int64_t first_token_ = 0;
  int64_t next_read_ = 0;  // index of a matrix
};

void RunModel(const Setup& setup) {
  std::vector<int64_t> wanted;
  for (const int64_t tokens : setup.tokens)
    if (setup.report.Wants(kName, setup.Describe(tokens))) wanted.push_back(tokens);
  if (wanted.empty()) return;
  setup.report.Start(kName, setup.Describe(wanted[0]));
  const size_t bytes =
      RankComm::BytesPerRank(setup.Mesh()) +
      MoeSymmetricBytes(Setup::Options(), setup.Shape(), setup.Mesh(), setup.backends.get());
  RunRankThreads(setup.ranks, bytes, [&](int rank, std::shared_ptr<SharedArena> arena) {
    if (setup.threads == 1) BindToCore(rank);
    ThreadPool pool(setup.threads);
    const auto comm = RankComm::Create(std::move(arena), setup.Mesh(), rank);
    Rank self(setup, *comm, pool);
    for (const int64_t tokens : wanted) {
      if (rank == 0) setup.report.Start(kName, setup.Describe(tokens));
      self.Run(tokens);
    }
  });
}

}  // namespace

void CpuMoeLayer(const Options& options, Report& report) {
  const int ranks = options.ranks > 0 ? options.ranks : 2;
  const int threads = options.threads > 0 ? options.threads : std::max(1, CoreCount() / ranks);
  const CpuCeilings ceilings = MeasureCpu(std::min(CoreCount(), ranks * threads), report);
  const std::vector<int64_t> default_tokens = {1, 8, 128, 1024};
  for (const ModelShape& model : ModelShapes()) {
    // DeepSeek-V3's experts take 11 GiB, so this model runs only if --model names it.
    if (options.model.empty() ? model.fp8 : options.model != model.name) continue;
    const int experts = options.experts_per_rank > 0 ? options.experts_per_rank * ranks
                                                     : model.num_experts / ranks * ranks;
    for (const Formats& formats : FormatsOf(model, ceilings)) {
      RunModel({.model = model,
                .formats = formats,
                .ranks = ranks,
                .threads = threads,
                .experts = experts,
                .tokens = options.tokens.empty() ? default_tokens : options.tokens,
                .report = report,
                .backends = options.backends});
    }
  }
}

}  // namespace switchyard::bench
