// Collectives over the GPUs of this host: one-shot and two-shot over peer memory, and NCCL. The
// reported bytes are bus bytes, as nccl-tests counts them: 2 (n - 1) / n times the message for an
// all-reduce, (n - 1) / n for an all-gather or a reduce-scatter. The time is that of the slowest
// rank, in replays of a captured graph.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_benches.h"
#include "bench/timing.h"
#include "comm/device/cuda/collectives.h"
#include "core/cuda/runtime.h"

namespace switchyard::bench {
namespace {

using cuda::Check;
using cuda::DeviceMemory;
using cuda::Event;
using cuda::kMaxTaggedBytes;
using cuda::PeerCollectives;
using cuda::PeerMemory;
using cuda::Stream;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kSamples = 7;

struct Rank {
  RankComm& comm;
  cudaStream_t stream;
  float* data;
  float* other;
};

// Seconds of one `operation` on the slowest rank: the median of kSamples samples of `calls` calls
// each.
double Time(const Rank& rank, int calls, const std::function<void()>& operation) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  Check(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) operation();
  Check(cudaStreamEndCapture(rank.stream, &graph), "capture");
  Check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  const Event start, stop;
  std::vector<double> samples;
  for (int i = -2; i < kSamples; ++i) {
    rank.comm.tp->Barrier("sample");
    start.Record(rank.stream);
    Check(cudaGraphLaunch(replay, rank.stream), "replay");
    stop.Record(rank.stream);
    stop.Wait();
    if (i >= 0) samples.push_back(stop.MillisecondsSince(start) * 1e-3 / calls);
  }
  const double median = Median(std::move(samples));
  std::vector<double> all(static_cast<size_t>(rank.comm.tp->size()));
  rank.comm.tp->AllGather(&median, all.data(), sizeof(double));
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  return *std::ranges::max_element(all);
}

// One rank's part of all cases; rank 0 reports.
class Bench {
 public:
  Bench(const Rank& rank, PeerMemory& memory, double link, Report& report)
      : rank_(rank),
        memory_(memory),
        link_(link),
        report_(report),
        group_(rank.comm.mesh.TpGroup()),
        peer_(memory, group_, rank.stream),
        nccl_(cuda::MakeCollectives(rank.comm, memory, group_, "tp", rank.stream,
                                    {.custom_all_reduce = false})) {}

  void Run() {
    for (size_t bytes = 8192; bytes <= kMaxBytes; bytes *= bytes < (size_t{4} << 20) ? 2 : 4)
      AllReduce(bytes);
    for (size_t bytes = 65536; bytes <= kMaxBytes; bytes *= 4) GatherAndScatter(bytes);
  }

 private:
  void AllReduce(size_t bytes) {
    const size_t count = bytes / sizeof(float);
    const double bus = 2 * BusBytes(bytes);
    const auto peer = [&](const char* backend, size_t tagged_bytes, size_t one_shot_bytes) {
      peer_.SetLimits(tagged_bytes, one_shot_bytes);
      Case("all-reduce", backend, bytes, bus, [&] { peer_.AllReduceSum(rank_.data, count); });
    };
    if (bytes <= kMaxTaggedBytes) peer("tagged", kMaxTaggedBytes, kMaxBytes);
    peer("one shot", 0, kMaxBytes);
    peer("two shots", 0, 0);
    Case("all-reduce", "NCCL", bytes, bus, [&] { nccl_->AllReduceSum(rank_.data, count); });
  }

  void GatherAndScatter(size_t bytes) {
    const std::vector<size_t> counts(group_.size(), bytes / group_.size());
    const std::vector<size_t> floats(group_.size(), bytes / group_.size() / sizeof(float));
    for (Collectives* by : {static_cast<Collectives*>(&peer_), nccl_.get()}) {
      const char* backend = by == &peer_ ? "peer memory" : "NCCL";
      Case("all-gather", backend, bytes, BusBytes(bytes),
           [&] { by->AllGatherV(rank_.data, rank_.other, counts); });
      Case("reduce-scatter", backend, bytes, BusBytes(bytes),
           [&] { by->ReduceScatterV(rank_.data, rank_.other, floats); });
    }
  }

  double BusBytes(size_t bytes) const {
    const auto n = static_cast<double>(group_.size());
    return static_cast<double>(bytes) * (n - 1) / n;
  }

  void Case(const char* name, const char* backend, size_t bytes, double bus,
            const std::function<void()>& operation) {
    const std::string shape = fmt::format("ranks {} {} KB {}", group_.size(), bytes >> 10, backend);
    if (!report_.Selects(name, shape)) return;
    const bool talks = rank_.comm.mesh.rank() == 0;
    if (talks) report_.Start(name, shape);
    const double seconds = Time(rank_, bytes <= (size_t{1} << 20) ? 40 : 8, operation);
    memory_.CheckTimeouts();
    if (!talks) return;
    report_.Add({.name = name,
                 .shape = shape,
                 .seconds = seconds,
                 .bytes = bus,
                 .limit = link_ > 0 && bus > 0 ? LinkLimit(bus, link_) : Limit()});
  }

  const Rank& rank_;
  PeerMemory& memory_;
  const double link_;
  Report& report_;
  const std::vector<int> group_;
  PeerCollectives peer_;
  const std::unique_ptr<Collectives> nccl_;
};

}  // namespace

void CollectivesBench(const Options& options, double link, Report& report) {
  const int ranks = CudaRanks(options, 1), gpus = cuda::DeviceCount();
  const MeshShape shape = {.tp = ranks};
  RunRankThreads(ranks, RankComm::BytesPerRank(shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   cuda::UseDevice(rank % gpus);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   const DeviceMemory data(kMaxBytes), other(kMaxBytes);
                   const Stream stream;
                   PeerMemory memory(*comm, 2 * cuda::CollectiveBytes({}, ranks),
                                     std::chrono::milliseconds(10'000));
                   const Rank self = {*comm, stream.get(), data.as<float>(), other.as<float>()};
                   Bench(self, memory, link, report).Run();
                 });
}

}  // namespace switchyard::bench
