// Cost of dispatch and combine on CPUs, for every exchange of this program, mode and batch size.
// Each rank has one core and is a thread or a process over one shared arena. Each stage prints a
// line:
//   - time from the start of the first rank to the end of the last. It is the minimum of many
//     medians of a few repetitions, since other work on the machine only adds time;
//   - bytes that the stage reads and writes, including those of the rank's own rows, and their rate
//     relative to that of a memcpy of the same number of bytes in the same run;
//   - bytes of rows that one rank receives from other ranks, and the time to copy the same number
//     of bytes into a peer's arena, in the same run.
// Stages: `place` converts float32 rows into the send buffer (not measured for exchanges without
// one); `dispatch`; `prepare` processes the runner's outputs before the combine; `combine`. With
// --moe-combine-rows rank, `prepare` adds up the outputs of each token. Rows are permuted in
// between, but no experts are computed: outputs are written to the runner's output buffer. `pass`
// covers everything from rows to sums with small experts, so that fused exchanges can be compared.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/cpu/cores.h"
#include "bench/cpu/exchange_case.h"
#include "bench/cpu/rank_benches.h"
#include "bench/timing.h"
#include "core/error.h"
#include "moe/cpu/cpu_backend.h"
#include "quant/quantize.h"

namespace switchyard::bench {
namespace {

constexpr auto kTimePerCase = std::chrono::milliseconds(300);
constexpr int kSamples = 7;  // samples per median
constexpr int kFewestSamples = 3 * kSamples, kMaxSamples = 2000;

using Case = ExchangeCase;

// `times`: seconds of one stage. Returns the minimum of the medians of kSamples consecutive times.
double LeastMedian(const std::vector<double>& times) {
  double least = INFINITY;
  for (size_t begin = 0; begin + kSamples <= times.size(); begin += kSamples) {
    std::array<double, kSamples> few;
    std::copy_n(times.begin() + begin, kSamples, few.begin());
    std::ranges::nth_element(few, few.begin() + kSamples / 2);
    least = std::min(least, few[kSamples / 2]);
  }
  return least;
}

std::vector<float> Normal(std::mt19937& random, int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

constexpr const char* kStages[] = {"place", "dispatch", "prepare", "combine"};
constexpr const char* kPass = "pass";

// One rank's part of a case; rank 0 reports.
class Bench {
 public:
  Bench(const Case& c, const std::shared_ptr<SharedArena>& arena, int rank, Report& report)
      : case_(c),
        report_(report),
        comm_(RankComm::Create(arena, c.Mesh(), rank)),
        pool_(1),
        copy_(comm_->memory->Allocate(c.CopyBytes())),
        runtime_(MakeCpuMoe(c.Options(), c.Shape(), *comm_, pool_, c.backends)) {
    MakeBatch();
    MakeExperts();
  }

  void Run() {
    BindToCore(comm_->tp->rank());
    const auto wanted = [&](const char* name) { return report_.Wants(name, case_.Describe()); };
    if (!runtime_->fused() && std::ranges::any_of(kStages, wanted)) ReportStages(MeasureStages());
    if (!case_.pass || !wanted(kPass)) return;
    std::vector<double> pass;
    Repeat([&] {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      RunPass();
      pass.push_back(GroupTime(start));
    });
    Add(kPass, LeastMedian(pass), DispatchedBytes() + ReturnedBytes(), 0);
  }

 private:
  struct Times {
    double place, dispatch, prepare, combine;
  };
  Times MeasureStages() {
    std::vector<double> place, dispatch, prepare, combine;
    const auto timed = [&](std::vector<double>& times, const auto& stage) {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      stage();
      times.push_back(GroupTime(start));
    };
    Repeat([&] {
      TouchAsRouter();
      timed(place, [&] { PlaceRows(); });
      TouchAsRouter();
      timed(dispatch, [&] { BeginAndEndDispatch(); });
      Permute();
      LeaveOutputs();
      timed(prepare, [&] { runtime_->dispatcher().PrepareCombine(expert_rows_, &handle_); });
      timed(combine, [&] { BeginAndEndCombine(); });
    });
    return {LeastMedian(place), LeastMedian(dispatch), LeastMedian(prepare), LeastMedian(combine)};
  }

  void ReportStages(const Times& times) {
    const size_t row = kHidden * sizeof(uint16_t);
    const size_t sums = y_.size() * sizeof(float);
    if (Any(rows_placed_))
      Add("place", times.place, 0, x_.size() * (sizeof(float) + sizeof(uint16_t)));
    Add("dispatch", times.dispatch, DispatchedBytes(),
        Any(rows_placed_) ? 0 : x_.size() * sizeof(float));
    if (!Any(outputs_left_)) {
      Add("combine", times.combine, ReturnedBytes(),
          ReturnedBytes() + expert_rows_.num_rows * kHidden * sizeof(float) + sums);
    } else if (case_.combine_rows == "slot") {
      Add("combine", times.combine, ReturnedBytes(), Experts() * row - ReturnedBytes() + sums);
    } else {
      Add("prepare", times.prepare, 0, (expert_rows_.num_rows + dispatched_.num_rows) * row);
      Add("combine", times.combine, RowsOut() * row, RowsOwn() * row + sums);
    }
  }

  // True if `here` is true on any rank. With few tokens a rank may have no rows, but all ranks must
  // take part in a measurement.
  bool Any(bool here) const {
    std::vector<uint8_t> all(comm_->tp->size());
    const uint8_t mine = here ? 1 : 0;
    comm_->tp->AllGather(&mine, all.data(), sizeof mine);
    return std::ranges::find(all, 1) != all.end();
  }

  // Seconds from the start of the first rank to the end of the last. Each rank calls this at its
  // end with its own start, and all get the same result. If ranks share cores, the result does not
  // depend on the scheduling of their threads.
  double GroupTime(Clock::time_point start) const {
    using Times = std::array<Clock::rep, 2>;
    const Times mine = {start.time_since_epoch().count(), Clock::now().time_since_epoch().count()};
    std::vector<Times> all(comm_->tp->size());
    comm_->tp->AllGather(&mine, all.data(), sizeof mine);
    Times span = mine;
    for (const Times& times : all)
      span = {std::min(span[0], times[0]), std::max(span[1], times[1])};
    return std::chrono::duration<double>(Clock::duration(span[1] - span[0])).count();
  }

  void MakeBatch() {
    std::mt19937 random(comm_->mesh.rank());
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    topk_ = {.tokens = case_.tokens, .k = case_.top_k, .ids = {}, .weights = {}};
    for (int64_t t = 0; t < case_.tokens; ++t) {
      std::ranges::shuffle(order, random);
      topk_.ids.insert(topk_.ids.end(), order.begin(), order.begin() + case_.top_k);
    }
    topk_.weights.assign(topk_.ids.size(), 1.0f / static_cast<float>(case_.top_k));
    x_ = Normal(random, case_.tokens * kHidden);
    y_.resize(x_.size());
  }

  void MakeExperts() {
    std::mt19937 random(7);
    const auto weight = [&](int64_t n, int64_t k) {
      return Quantize(WeightFormat::kBF16, Normal(random, n * k, 0.1f), n, k);
    };
    const kernels::ExpertWeights expert = {.gate = weight(kIntermediate, kHidden),
                                           .up = weight(kIntermediate, kHidden),
                                           .down = weight(kHidden, kIntermediate)};
    experts_.assign(runtime_->experts().LocalExperts(comm_->mesh.ep_rank()), expert);
    block_.experts = experts_;
  }

  // Repeats `body` for kTimePerCase by rank 0's clock, and at least kFewestSamples times. All ranks
  // repeat it equally often.
  void Repeat(const std::function<void()>& body) {
    body();
    const auto start = Clock::now();
    for (int i = 0; i < kMaxSamples; ++i) {
      body();
      const bool enough = i + 1 >= kFewestSamples && Clock::now() - start > kTimePerCase;
      if (comm_->tp->Broadcast(enough ? "enough" : "more") == "enough") return;
    }
  }

  // Converts rows to the send buffer, as the layer or the producer of the rows does.
  void PlaceRows() {
    std::byte* rows = runtime_->dispatcher().InputRows(topk_.tokens, true, &handle_);
    rows_placed_ = rows != nullptr;
    if (!rows) return;
    const RowFormat format = runtime_->exchange().row_format;
    const int64_t bytes = format.Bytes(kHidden);
    for (int64_t t = 0; t < topk_.tokens; ++t)
      StoreRow(format, x_.data() + t * kHidden, kHidden, rows + t * bytes);
  }
  void BeginAndEndDispatch() {
    runtime_->dispatcher().BeginDispatch(x_.data(), topk_, true, &handle_);
    dispatched_ = runtime_->dispatcher().EndDispatch(&handle_);
  }
  // Reads the rows, so that the caches have the same contents as after the router.
  void TouchAsRouter() const {
    float sum = 0;
    for (size_t i = 0; i < x_.size(); i += 16) sum += x_[i];
    asm volatile("" ::"x"(sum));
  }
  void Permute() {
    const PermutePair& permute = runtime_->permute(dispatched_.layout);
    permute.pre(runtime_->permute_context(), dispatched_, &grouped_);
    expert_rows_ = permute.post(grouped_, nullptr);
  }
  // Writes outputs, so that the caches have the same contents as after a runner.
  void LeaveOutputs() {
    const auto places = runtime_->dispatcher().OutputDestinations(expert_rows_, &handle_);
    outputs_left_ = !places.empty();
    for (std::byte* place : places)
      if (place) std::fill_n(reinterpret_cast<uint16_t*>(place), kHidden, uint16_t{0x3f80});
    if (outputs_left_) return;
    outputs_.resize(std::max<size_t>(outputs_.size(), grouped_.num_rows * kHidden));
    std::ranges::fill(outputs_, 1.0f);
    expert_rows_ = runtime_->permute(dispatched_.layout).post(grouped_, outputs_.data());
  }
  void BeginAndEndCombine() {
    runtime_->dispatcher().BeginCombine(expert_rows_, &handle_);
    runtime_->dispatcher().EndCombine(&handle_, y_.data());
  }
  void RunPass() {
    if (FusedExperts* fused = runtime_->fused()) {
      fused->Begin(x_.data(), topk_, true, &handle_);
      fused->End(block_, &handle_, y_.data());
      return;
    }
    PlaceRows();
    BeginAndEndDispatch();
    Permute();
    const auto places = runtime_->dispatcher().OutputDestinations(expert_rows_, &handle_);
    if (places.empty()) {
      runtime_->runner().Run(block_, grouped_, kHidden, pool_, outputs_.data());
      expert_rows_ = runtime_->permute(dispatched_.layout).post(grouped_, outputs_.data());
    } else {
      runtime_->runner().RunTo(block_, grouped_, kHidden, pool_, DType::kBF16, places);
    }
    BeginAndEndCombine();
  }

  // Counts (token, rank) pairs: rows that this rank sends to other ranks, one per rank.
  int64_t RowsOut() const {
    int64_t rows = 0;
    for (int64_t t = 0; t < topk_.tokens; ++t) {
      uint64_t ranks = 0;
      for (int j = 0; j < case_.top_k; ++j)
        ranks |= uint64_t{1} << runtime_->experts().Owner(topk_.ids[t * case_.top_k + j]);
      rows += __builtin_popcountll(ranks & ~(uint64_t{1} << comm_->mesh.ep_rank()));
    }
    return rows;
  }
  int64_t RowsOwn() const {
    int64_t rows = 0;
    for (int64_t t = 0; t < topk_.tokens; ++t) {
      const auto ids = std::span(topk_.ids).subspan(t * case_.top_k, case_.top_k);
      rows += std::ranges::any_of(ids, [&](int32_t expert) {
        return runtime_->experts().Owner(expert) == comm_->mesh.ep_rank();
      });
    }
    return rows;
  }
  int64_t Experts() const { return topk_.tokens * case_.top_k; }
  int64_t RowsBack() const {
    return std::ranges::count_if(topk_.ids, [&](int32_t expert) {
      return runtime_->experts().Owner(expert) != comm_->mesh.ep_rank();
    });
  }
  // `none` gathers float32 rows with their routing, and reduce-scatters float32 sums.
  size_t GatheredRows() const { return static_cast<size_t>((case_.ranks - 1) * case_.tokens); }
  size_t DispatchedBytes() const {
    if (case_.a2a == "none")
      return GatheredRows() *
             (kHidden * sizeof(float) + case_.top_k * (sizeof(int32_t) + sizeof(float)));
    return RowsOut() * RowFormat{DType::kBF16, case_.fp8}.Bytes(kHidden);
  }
  size_t ReturnedBytes() const {
    if (case_.a2a == "none") return GatheredRows() * kHidden * sizeof(float);
    return RowsBack() * kHidden * sizeof(uint16_t);
  }

  // Time to copy `bytes` into the next rank's arena, while all ranks do the same. Between copies
  // the receiver reads the copied bytes, as it reads rows in an exchange.
  double CopyTime(size_t bytes) {
    const size_t size = std::min(bytes, case_.CopyBytes());
    const std::vector<std::byte> from(size);
    std::byte* to = comm_->memory->At((comm_->tp->rank() + 1) % case_.ranks, copy_);
    std::vector<double> times;
    uint64_t sum = 0;
    Repeat([&] {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      std::memcpy(to, from.data(), size);
      times.push_back(SecondsSince(start));
      comm_->tp->Barrier("bench");
      const std::byte* mine = comm_->memory->Local(copy_);
      for (size_t i = 0; i < size; i += 64) sum += std::to_integer<uint64_t>(mine[i]);
    });
    asm volatile("" ::"r"(sum));
    return LeastMedian(times) * static_cast<double>(bytes) /
           static_cast<double>(std::max<size_t>(size, 1));
  }

  // Bytes per second, reads and writes, of a copy between buffers of one rank, while the others do
  // the same.
  double CopyRate(size_t bytes) {
    const size_t size = std::max<size_t>(bytes / 2, 64);
    const std::vector<std::byte> from(size);
    std::vector<std::byte> to(size);
    std::vector<double> times;
    Repeat([&] {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      std::memcpy(to.data(), from.data(), size);
      times.push_back(SecondsSince(start));
      asm volatile("" ::"r"(to.data()) : "memory");
    });
    return 2.0 * static_cast<double>(size) / LeastMedian(times);
  }

  // Reports a stage. `sent`: bytes sent to other ranks. `own`: bytes read and written in addition
  // to those; 0: unknown.
  void Add(const char* stage, double seconds, size_t sent, size_t own) {
    const double copy = Any(sent > 0) ? CopyTime(sent) : 0.0;
    const bool rated = Any(own > 0) && case_.a2a != "none";
    const auto moved = static_cast<double>(rated ? sent + own : sent);
    const Limit limit = rated ? LinkLimit(moved, CopyRate(sent + own)) : Limit();
    if (comm_->tp->rank() != 0) return;
    Result result = {.name = stage,
                     .shape = case_.Describe(),
                     .seconds = seconds,
                     .bytes = moved,
                     .limit = limit};
    if (sent > 0)
      result.more = {{"received B", static_cast<double>(sent)}, {"memcpy us", copy * 1e6}};
    report_.Add(std::move(result));
  }

  const Case case_;
  Report& report_;
  std::unique_ptr<RankComm> comm_;
  ThreadPool pool_;
  size_t copy_;
  std::shared_ptr<CpuMoeBackend> runtime_;
  TopK topk_;
  std::vector<float> x_, y_;
  std::vector<kernels::ExpertWeights> experts_;
  ExpertBlock block_;
  DispatchHandle handle_;
  Dispatched dispatched_;
  GroupedRows grouped_;
  std::vector<float> outputs_;
  ExpertRows expert_rows_;
  bool rows_placed_ = false, outputs_left_ = false;
};

// Rank 0 is a thread of this process; the others are child processes.
void RunProcesses(const Case& c, const std::shared_ptr<SharedArena>& arena, Report& report) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 1; rank < c.ranks; ++rank) {
    children.push_back(fork());
    if (children.back() < 0)
      throw Resource("cannot start the process of rank {}: {}", rank, strerror(errno));
    if (children.back() > 0) continue;
    try {
      Bench(c, arena, rank, report).Run();
      _exit(0);
    } catch (const std::exception& e) {
      fmt::print(stderr, "rank {}: {}\n", rank, e.what());
      arena->Abort(e.what());
      _exit(1);
    }
  }
  std::exception_ptr error;
  std::thread([&] {
    try {
      Bench(c, arena, 0, report).Run();
    } catch (const std::exception& e) {
      arena->Abort(e.what());
      error = std::current_exception();
    }
  }).join();
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  if (error) std::rethrow_exception(error);
}

void RunCase(const Case& c, Report& report) {
  const std::string shape = c.Describe();
  const auto wanted = [&](const char* name) { return report.Wants(name, shape); };
  if (!std::ranges::any_of(kStages, wanted) && !wanted(kPass)) return;
  report.Start("dispatch and combine", shape);
  const size_t bytes =
      RankComm::BytesPerRank(c.Mesh()) + c.CopyBytes() + 4096 +
      MoeSymmetricBytes(c.Options(), c.Shape(), c.Mesh(), c.backends ? c.backends.get() : nullptr);
  if (c.processes) return RunProcesses(c, SharedArena::Create(c.ranks, bytes), report);
  RunRankThreads(c.ranks, bytes, [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    Bench(c, arena, rank, report).Run();
  });
}

// Two ranks, as threads and as processes. The cases with top-1 send as many bytes as a plain
// all-to-all of one row per token.
void RunTwoRanks(const Options& options, Report& report) {
  const std::vector<int64_t> default_tokens = {128, 4096};
  for (const bool processes : {false, true})
    for (const int top_k : {1, 8})
      for (const int64_t tokens : options.tokens.empty() ? default_tokens : options.tokens)
        for (const std::string mode : {"normal", "low_latency"})
          for (const std::string combine_rows : {"slot", "rank"}) {
            const bool in_table = !processes && top_k == 8 && combine_rows == "slot";
            if (in_table && options.ranks == 2) continue;
            RunCase({.a2a = "deepep",
                     .mode = mode,
                     .ranks = 2,
                     .tokens = tokens,
                     .top_k = top_k,
                     .processes = processes,
                     .combine_rows = combine_rows,
                     .backends = options.backends},
                    report);
          }
}

// All exchanges, modes and batch sizes on `ranks` ranks, which are threads.
void RunTable(int ranks, const Options& options, Report& report) {
  const MoeBackends backends = options.backends ? *options.backends : BuiltinMoeBackends();
  std::vector<std::pair<std::string, std::string>> exchanges;
  const auto add = [&](const std::string& name) {
    if (name != "deepep" && name != "mooncake") return exchanges.push_back({name, ""});
    exchanges.push_back({name, "normal"});
    exchanges.push_back({name, "low_latency"});
  };
  for (const auto& [name, backend] : backends.dispatchers.all()) add(name);
  for (const auto& [name, backend] : backends.fused.all()) add(name);
  const std::vector<int64_t> default_tokens = {1, 32, 512, 4096};
  for (const auto& [a2a, mode] : exchanges)
    for (const bool fp8 : {false, true})
      for (const int64_t tokens : options.tokens.empty() ? default_tokens : options.tokens)
        if (!fp8 || a2a == "deepep")
          RunCase({.a2a = a2a,
                   .mode = mode,
                   .ranks = ranks,
                   .tokens = tokens,
                   .fp8 = fp8,
                   .pass = !fp8 && tokens <= 512,
                   .backends = options.backends},
                  report);
}

}  // namespace

void CpuDispatchCombine(const Options& options, Report& report) {
  if (options.ranks == 0 || options.ranks == 2) RunTwoRanks(options, report);
  RunTable(options.ranks == 0 ? 4 : options.ranks, options, report);
}

void CpuExchange(const Options& options, Report& report) {
  if (options.ranks == 1) throw Invalid("--ranks 1: want at least 2 ranks");
  const std::vector<int> both = {2, 4};
  CpuCollectives(options.ranks == 0 ? both : std::vector<int>{options.ranks}, report);
  CpuDispatchCombine(options, report);
}

}  // namespace switchyard::bench
