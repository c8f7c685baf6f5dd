// What dispatch and combine cost, for every exchange of this build, mode and batch size, with a
// rank on each core, as threads or as processes over one shared arena. A line for each stage:
//   - time from the first rank's begin to the last one's end: the least of many medians of a few
//     times in a row, as other work on the machine only adds; and bytes of rows that one rank takes
//     from others;
//   - the time of a bare copy of as many bytes into a peer's arena, in the same run;
//   - what the stage has to read and write, own rows included, as a fraction of the rate that
//   memcpy
//     reaches on as many bytes, in the same run.
// Stages: `place`, float32 rows to where others read them as they travel (nothing where whoever
// makes the rows writes them there); `dispatch`; `prepare`, what is done with the runner's outputs
// before the combine (--moe-combine-rows rank: they are added up); `combine`. Rows are permuted
// between, but no experts computed: outputs are written to where a runner leaves them. `pass` is
// everything from rows to sums with small experts, so that fused exchanges can be compared.
//
//   moe_exchange_bench            two ranks, threads and processes; then four ranks, all exchanges
//                                 (top-1 is what a bare alltoallv of one row a token moves)
//   moe_exchange_bench two|table  one of these
//   moe_exchange_bench deepep normal 2 4096 [rank]   one case: exchange, mode, ranks, tokens of
//                                 each, --moe-combine-rows
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/testing.h"
#include "moe/runtime.h"
#include "quant/quantize.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 2048;
constexpr int64_t kIntermediate = 64;
constexpr int kExperts = 64;
constexpr auto kTimePerCase = std::chrono::milliseconds(300);
constexpr int kSamples = 7;  // of one median
constexpr int kFewestSamples = 3 * kSamples, kMostSamples = 2000;

struct Case {
  std::string a2a, mode;
  int ranks = 2;
  int64_t tokens = 128;  // of each rank
  int top_k = 8;
  bool fp8 = false;
  bool processes = false;
  bool pass = false;
  std::string combine_rows = "slot";

  MoeOptions Options() const {
    return {.a2a_backend = a2a,
            .deepep_mode = mode,
            .max_dispatch_tokens_per_rank = static_cast<int>(tokens),
            .dispatcher_output_dtype = fp8 ? "fp8" : "bf16",
            .combine_rows = combine_rows,
            .row_dtype = DType::kBF16};
  }
  MoeShape Shape() const { return {kHidden, kIntermediate, kExperts, top_k, tokens, false}; }
  // Every rank has a batch of its own.
  MeshShape Mesh() const { return {.tp = ranks, .ep = ranks, .dp = ranks}; }
  size_t CopyBytes() const { return tokens * top_k * kHidden * sizeof(uint16_t); }
};

// One core for each rank, as long as there are enough: the scheduler's moves are not measured.
void BindToCore(int rank) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &core);
  sched_setaffinity(0, sizeof core, &core);
}

// Of one stage: the least of the medians of kSamples times in a row each.
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

// One rank's part of a case; rank 0 prints.
class Bench {
 public:
  Bench(const Case& c, const std::shared_ptr<SharedArena>& arena, int rank)
      : case_(c),
        comm_(RankComm::Create(arena, c.Mesh(), rank)),
        pool_(1),
        copy_(comm_->memory->Allocate(c.CopyBytes())),
        runtime_(MakeMoeRuntime(c.Options(), c.Shape(), *comm_, pool_)) {
    MakeBatch();
    MakeExperts();
  }

  void Run() {
    BindToCore(comm_->tp->rank());
    if (!runtime_->fused()) {
      ReportStages(MeasureStages());
    }
    if (!case_.pass) return;
    std::vector<double> pass;
    Repeat([&] {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      RunPass();
      pass.push_back(GroupTime(start));
    });
    Report("pass", LeastMedian(pass), DispatchedBytes() + ReturnedBytes(), 0);
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
    if (rows_placed_)
      Report("place", times.place, 0, x_.size() * (sizeof(float) + sizeof(uint16_t)));
    Report("dispatch", times.dispatch, DispatchedBytes(),
           rows_placed_ ? 0 : x_.size() * sizeof(float));
    if (!outputs_left_) {
      Report("combine", times.combine, ReturnedBytes(),
             ReturnedBytes() + expert_rows_.num_rows * kHidden * sizeof(float) + sums);
    } else if (case_.combine_rows == "slot") {
      Report("combine", times.combine, ReturnedBytes(), Experts() * row - ReturnedBytes() + sums);
    } else {
      Report("prepare", times.prepare, 0, (expert_rows_.num_rows + dispatched_.num_rows) * row);
      Report("combine", times.combine, RowsOut() * row, RowsOwn() * row + sums);
    }
  }

  static double Since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  // From where the first rank began to where the last one ended, now: the same on every rank, and
  // not a matter of luck where ranks share cores.
  double GroupTime(Clock::time_point start) const {
    using Times = std::array<Clock::rep, 2>;
    const Times mine = {start.time_since_epoch().count(), Clock::now().time_since_epoch().count()};
    std::vector<Times> all(comm_->tp->size());
    comm_->tp->AllGather(&mine, all.data(), sizeof mine);
    Times span = mine;
    for (const Times& times : all)
      span = {std::min(span[0], times[0]), std::max(span[1], times[1])};
    return std::chrono::duration<double, std::micro>(Clock::duration(span[1] - span[0])).count();
  }

  void MakeBatch() {
    kernels::Random random(comm_->mesh.rank());
    topk_ = {.tokens = case_.tokens, .k = case_.top_k, .ids = {}, .weights = {}};
    for (int64_t t = 0; t < case_.tokens; ++t) {
      const std::vector<int32_t> order = random.Shuffled(kExperts);
      topk_.ids.insert(topk_.ids.end(), order.begin(), order.begin() + case_.top_k);
    }
    topk_.weights.assign(topk_.ids.size(), 1.0f / static_cast<float>(case_.top_k));
    x_ = random.Normal(case_.tokens * kHidden);
    y_.resize(x_.size());
  }

  void MakeExperts() {
    kernels::Random random(7);
    const auto weight = [&](int64_t n, int64_t k) {
      return Quantize(WeightFormat::kBF16, random.Normal(n * k, 0.1f), n, k);
    };
    const kernels::ExpertWeights expert = {.gate = weight(kIntermediate, kHidden),
                                           .up = weight(kIntermediate, kHidden),
                                           .down = weight(kHidden, kIntermediate)};
    experts_.assign(kExperts / case_.ranks, expert);
    block_.experts = experts_;
  }

  // As long as kTimePerCase on rank 0, the same number of times on every rank.
  void Repeat(const std::function<void()>& body) {
    body();
    const auto start = Clock::now();
    for (int i = 0; i < kMostSamples; ++i) {
      body();
      const bool enough = i + 1 >= kFewestSamples && Clock::now() - start > kTimePerCase;
      if (comm_->tp->Broadcast(enough ? "enough" : "more") == "enough") return;
    }
  }

  // As the layer does it, or at best whoever makes the rows.
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
  // Rows are as warm as the router leaves them.
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
  // As a runner that has just written them.
  void LeaveOutputs() {
    const auto places = runtime_->dispatcher().OutputPlaces(expert_rows_, &handle_);
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
    const auto places = runtime_->dispatcher().OutputPlaces(expert_rows_, &handle_);
    if (places.empty()) {
      runtime_->runner().Run(block_, grouped_, kHidden, pool_, outputs_.data());
      expert_rows_ = runtime_->permute(dispatched_.layout).post(grouped_, outputs_.data());
    } else {
      runtime_->runner().RunTo(block_, grouped_, kHidden, pool_, DType::kBF16, places);
    }
    BeginAndEndCombine();
  }

  // (token, rank) and (token, slot) pairs of other ranks.
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
  // `none` gathers rows as float32, with their routing, and scatters sums in float32.
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

  // Time of a bare copy of `bytes` into the next rank's arena, while all do the same; the receiver
  // reads them in between, as it does the rows.
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
      times.push_back(Since(start));
      comm_->tp->Barrier("bench");
      const std::byte* mine = comm_->memory->Local(copy_);
      for (size_t i = 0; i < size; i += 64) sum += std::to_integer<uint64_t>(mine[i]);
    });
    asm volatile("" ::"r"(sum));
    return LeastMedian(times) * static_cast<double>(bytes) /
           static_cast<double>(std::max<size_t>(size, 1));
  }

  // Bytes per µs that a copy between buffers of one rank reads and writes, while the others do the
  // same.
  double CopyRate(size_t bytes) {
    const size_t size = std::max<size_t>(bytes / 2, 64);
    const std::vector<std::byte> from(size);
    std::vector<std::byte> to(size);
    std::vector<double> times;
    Repeat([&] {
      comm_->tp->Barrier("bench");
      const auto start = Clock::now();
      std::memcpy(to.data(), from.data(), size);
      times.push_back(Since(start));
      asm volatile("" ::"r"(to.data()) : "memory");
    });
    return 2.0 * static_cast<double>(size) / LeastMedian(times);
  }

  // `own`: bytes read and written besides those sent; 0: not known.
  void Report(const char* stage, double time, size_t sent, size_t own) {
    const double copy = sent > 0 ? CopyTime(sent) : 0.0;
    const bool rated = own > 0 && case_.a2a != "none";
    const double rate = rated ? CopyRate(sent + own) : 0.0;
    if (comm_->tp->rank() != 0) return;
    const std::string name = case_.a2a + (case_.mode.empty() ? "" : " " + case_.mode) +
                             (case_.combine_rows == "slot" ? "" : " by rank");
    fmt::print("{:<26} {:<8} ranks {} {} {} top-{} tokens {:>4} {:>10.1f} us, {:>10} B taken", name,
               stage, case_.ranks, case_.processes ? "processes" : "threads  ",
               case_.fp8 ? "fp8 " : "bf16", case_.top_k, case_.tokens, time, sent);
    if (sent > 0) fmt::print(", bare copy {:>9.1f} us", copy);
    if (rated)
      fmt::print(", {:>6.2f} GB/s in all, {:>3.0f} % of memcpy",
                 1e-3 * static_cast<double>(sent + own) / time,
                 100 * static_cast<double>(sent + own) / time / rate);
    fmt::print("\n");
    std::fflush(stdout);
  }

  const Case case_;
  std::unique_ptr<RankComm> comm_;
  ThreadPool pool_;
  size_t copy_;
  std::shared_ptr<MoeRuntime> runtime_;
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

void RunCase(const Case& c) {
  const size_t bytes = RankComm::BytesPerRank(c.Mesh()) + c.CopyBytes() + 4096 +
                       MoeSymmetricBytes(c.Options(), c.Shape(), c.Mesh());
  if (!c.processes) {
    RunRankThreads(c.ranks, bytes,
                   [&](int rank, const auto& arena) { Bench(c, arena, rank).Run(); });
    return;
  }
  const auto arena = SharedArena::Create(c.ranks, bytes);
  std::fflush(stdout);
  for (int rank = 0; rank < c.ranks; ++rank) {
    if (fork() != 0) continue;
    Bench(c, arena, rank).Run();
    _exit(0);
  }
  while (wait(nullptr) > 0) {
  }
}

void RunTwoRanks() {
  for (const bool processes : {false, true})
    for (const int top_k : {1, 8})
      for (const int64_t tokens : {128, 4096})
        for (const std::string mode : {"normal", "low_latency"})
          for (const std::string combine_rows : {"slot", "rank"})
            RunCase({.a2a = "deepep",
                     .mode = mode,
                     .ranks = 2,
                     .tokens = tokens,
                     .top_k = top_k,
                     .processes = processes,
                     .combine_rows = combine_rows});
}

void RunTable() {
  const MoeBackends backends = BuiltinMoeBackends();
  std::vector<std::pair<std::string, std::string>> exchanges;
  const auto add = [&](const std::string& name) {
    if (name != "deepep" && name != "mooncake") return exchanges.push_back({name, ""});
    exchanges.push_back({name, "normal"});
    exchanges.push_back({name, "low_latency"});
  };
  for (const auto& [name, backend] : backends.dispatchers.all()) add(name);
  for (const auto& [name, backend] : backends.fused.all()) add(name);
  for (const auto& [a2a, mode] : exchanges)
    for (const bool fp8 : {false, true})
      for (const int64_t tokens : {1, 32, 512, 4096})
        if (!fp8 || a2a == "deepep")
          RunCase({a2a, mode, 4, tokens, 8, fp8, false, !fp8 && tokens <= 512});
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  if (argc >= 5) {
    switchyard::RunCase({.a2a = argv[1],
                         .mode = argv[2],
                         .ranks = std::atoi(argv[3]),
                         .tokens = std::atoi(argv[4]),
                         .combine_rows = argc > 5 ? argv[5] : "slot"});
    return 0;
  }
  const std::string which = argc > 1 ? argv[1] : "";
  if (which.empty() || which == "two") switchyard::RunTwoRanks();
  if (which.empty() || which == "table") switchyard::RunTable();
}
