// Sums over the GPUs of this host, in µs and GB/s: over peer memory in one shot and in two, and
// through NCCL. Bandwidth is that of the bus, as NCCL's own tests count: 2 (n - 1) / n times the
// message for an all-reduce, (n - 1) / n for a gather or a scatter. The time is that of the slowest
// rank, recorded in a graph and replayed. Usage: allreduce_bench [ranks]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/device/cuda/collectives.h"
#include "comm/device/cuda/peer_collectives.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kSamples = 7;

struct Rank {
  RankComm& comm;
  cudaStream_t stream;
  float* data;
  float* other;
};

// µs of one `operation`, the median of kSamples of `calls` each, of the slowest rank.
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
    if (i >= 0) samples.push_back(stop.MillisecondsSince(start) * 1000 / calls);
  }
  std::ranges::sort(samples);
  std::vector<double> all(static_cast<size_t>(rank.comm.tp->size()));
  rank.comm.tp->AllGather(&samples[kSamples / 2], all.data(), sizeof(double));
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  return *std::ranges::max_element(all);
}

std::string Cell(double us, double bytes) {
  return fmt::format("{:>9.1f} {:>6.1f}", us, bytes / us * 1e-3);
}

void Bench(const Rank& rank, PeerMemory& memory) {
  const std::vector<int> group = rank.comm.mesh.TpGroup();
  const bool talks = rank.comm.mesh.rank() == 0;
  const double n = static_cast<double>(group.size());
  PeerCollectives peer(memory, group, rank.stream);
  const auto nccl =
      MakeCollectives(rank.comm, memory, group, "tp", rank.stream, {.custom_all_reduce = false});
  if (talks) {
    fmt::print("{} ranks; µs and GB/s\nall-reduce{:>16}{:>18}{:>18}{:>17}\n", group.size(),
               "tagged", "one shot", "two shots", "NCCL");
  }
  const auto print = [&](const std::string& line) {
    memory.CheckWaits();
    if (talks) fmt::print("{}\n", line);
    if (talks) fflush(stdout);
  };
  for (size_t bytes = 8192; bytes <= kMostBytes; bytes *= bytes < (size_t{4} << 20) ? 2 : 4) {
    const size_t count = bytes / sizeof(float);
    const int calls = bytes <= (size_t{1} << 20) ? 40 : 8;
    const double bus = static_cast<double>(bytes) * 2 * (n - 1) / n;
    std::string line = fmt::format("{:>8} KB", bytes >> 10);
    const size_t limits[][2] = {{kMostTaggedBytes, kMostBytes}, {0, kMostBytes}, {0, 0}};
    for (const auto [tagged, one_shot] : limits) {
      if (tagged > 0 && bytes > kMostTaggedBytes) {
        line += fmt::format("{:18}", "");
        continue;
      }
      peer.SetLimits(tagged, one_shot);
      const auto run = [&] { peer.AllReduceSum(rank.data, count); };
      line += "  " + Cell(Time(rank, calls, run), bus);
    }
    const auto run = [&] { nccl->AllReduceSum(rank.data, count); };
    print(line + "  " + Cell(Time(rank, calls, run), bus));
  }
  if (talks)
    fmt::print("gather and scatter: peer gather, NCCL gather, peer scatter, NCCL scatter\n");
  for (size_t bytes = 65536; bytes <= kMostBytes; bytes *= 4) {
    const int calls = bytes <= (size_t{1} << 20) ? 40 : 8;
    const double bus = static_cast<double>(bytes) * (n - 1) / n;
    const std::vector<size_t> counts(group.size(), bytes / group.size());
    const std::vector<size_t> floats(group.size(), bytes / group.size() / sizeof(float));
    std::string line = fmt::format("{:>8} KB", bytes >> 10);
    for (Collectives* by : {static_cast<Collectives*>(&peer), nccl.get()}) {
      const auto run = [&] { by->AllGatherV(rank.data, rank.other, counts); };
      line += "  " + Cell(Time(rank, calls, run), bus);
    }
    for (Collectives* by : {static_cast<Collectives*>(&peer), nccl.get()}) {
      const auto run = [&] { by->ReduceScatterV(rank.data, rank.other, floats); };
      line += "  " + Cell(Time(rank, calls, run), bus);
    }
    print(line);
  }
}

}  // namespace
}  // namespace switchyard::cuda

int main(int argc, char** argv) {
  using namespace switchyard;
  using namespace switchyard::cuda;
  const int gpus = DeviceCount(), ranks = argc > 1 ? std::atoi(argv[1]) : gpus;
  if (gpus == 0 || ranks < 1 || ranks > kMaxPeers) {
    fmt::print("no GPU, or a strange number of ranks\n");
    return 2;
  }
  const MeshShape shape = {.tp = ranks};
  RunRankThreads(
      ranks, RankComm::BytesPerRank(shape), [&](int rank, std::shared_ptr<SharedArena> arena) {
        UseDevice(rank % gpus);
        const auto comm = RankComm::Create(std::move(arena), shape, rank);
        const DeviceMemory data(kMostBytes), other(kMostBytes);
        const Stream stream;
        PeerMemory memory(*comm, 2 * CollectiveBytes({}, ranks), std::chrono::milliseconds(10'000));
        Bench({*comm, stream.get(), data.as<float>(), other.as<float>()}, memory);
      });
}
