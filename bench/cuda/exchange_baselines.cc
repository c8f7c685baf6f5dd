// Baselines of the exchange: plain copies between GPUs, and NCCL.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "bench/cuda/exchange_bench_ranks.h"
#include "bench/cuda/peer_copy.h"

namespace switchyard::bench {

double PlainCopy(const Ranks& ranks, Report& report) {
  constexpr size_t kBytes = size_t{256} << 20;
  for (const auto& rank : ranks) {
    rank->Use();
    rank->memory = DeviceMemory(kBytes);
    rank->x = DeviceMemory(kBytes);
  }
  double best = 0;
  for (const int blocks : {24, 66, 132, 264}) {
    const double seconds = Time(ranks, 4, [&](const Rank& rank, int r) {
      StartPeerCopy(rank.x.data(), ranks[(r + 1) % ranks.size()]->memory.data(), kBytes, blocks,
                    rank.stream.get());
    });
    report.Machine(fmt::format("plain copy to a peer, {} blocks", blocks), kBytes / seconds * 1e-9,
                   "GB/s");
    best = std::max(best, kBytes / seconds);
  }
  const double engine = Time(ranks, 4, [&](const Rank& rank, int r) {
    Check(cudaMemcpyAsync(ranks[(r + 1) % ranks.size()]->memory.data(), rank.x.data(), kBytes,
                          cudaMemcpyDeviceToDevice, rank.stream.get()),
          "copy");
  });
  report.Machine("plain copy to a peer, copy engine", kBytes / engine * 1e-9, "GB/s");
  return best;
}

// Declares the NCCL functions that an all-to-all needs, according to NCCL's documentation.
void NcclAllToAll(const Ranks& ranks, double link, Report& report) {
  const std::string name = "nccl-all-to-all";
  const auto shape_of = [&](size_t bytes) {
    return fmt::format("ranks {} {:.1f} MB to each", ranks.size(),
                       static_cast<double>(bytes) * 1e-6);
  };
  constexpr size_t kSizes[] = {100'000, 500'000, 4'000'000, 32'000'000};  // bytes to each rank
  if (std::ranges::none_of(kSizes, [&](size_t b) { return report.Selects(name, shape_of(b)); }))
    return;
  const char* folder = std::getenv("SWITCHYARD_NCCL_LIBRARY");
  void* library = dlopen("libnccl.so.2", RTLD_NOW);
  if (!library && folder)
    library = dlopen(fmt::format("{}/libnccl.so.2", folder).c_str(), RTLD_NOW);
  const int n = static_cast<int>(ranks.size());
  if (!library || n < 2 || n > DeviceCount()) {
    report.Note("NCCL not measured: it is not installed, or not every rank has its own GPU");
    return;
  }
  const auto find = [&]<typename F>(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (!function) throw Resource("libnccl.so.2 has no {}", name);
  };
  using Handle = void*;
  int (*init)(Handle*, int, const int*), (*start)(), (*end)();
  int (*send)(const void*, size_t, int, int, Handle, cudaStream_t);
  int (*receive)(void*, size_t, int, int, Handle, cudaStream_t);
  find(init, "ncclCommInitAll");
  find(start, "ncclGroupStart");
  find(end, "ncclGroupEnd");
  find(send, "ncclSend");
  find(receive, "ncclRecv");
  std::vector<Handle> handles(n);
  if (init(handles.data(), n, nullptr) != 0) {
    report.Note("NCCL not measured: ncclCommInitAll failed");
    return;
  }
  for (const size_t bytes : kSizes) {
    if (!report.Selects(name, shape_of(bytes))) continue;
    report.Start(name, shape_of(bytes));
    std::vector<Event> starts, stops;
    for (const auto& rank : ranks) {
      rank->Use();
      starts.emplace_back();
      stops.emplace_back();
      rank->memory = DeviceMemory(bytes * n);
      rank->x = DeviceMemory(bytes * n);
    }
    constexpr int kCalls = 10;
    for (int call = -3; call < kCalls; ++call) {
      for (int r = 0; r < n && call == 0; ++r) {
        ranks[r]->Use();
        starts[r].Record(ranks[r]->stream.get());
      }
      start();
      for (int r = 0; r < n; ++r) {
        for (int peer = 0; peer < n; ++peer) {
          if (peer == r) continue;
          constexpr int kBytes = 1;  // ncclUint8
          send(ranks[r]->x.data() + peer * bytes, bytes, kBytes, peer, handles[r],
               ranks[r]->stream.get());
          receive(ranks[r]->memory.data() + peer * bytes, bytes, kBytes, peer, handles[r],
                  ranks[r]->stream.get());
        }
      }
      end();
    }
    double slowest = 0;
    for (int r = 0; r < n; ++r) {
      ranks[r]->Use();
      stops[r].Record(ranks[r]->stream.get());
    }
    Synchronize(ranks);
    for (int r = 0; r < n; ++r)
      slowest = std::max(slowest, stops[r].MillisecondsSince(starts[r]) * 1e-3 / kCalls);
    const double sent = static_cast<double>(bytes) * (n - 1);
    report.Add({.name = name,
                .shape = shape_of(bytes),
                .seconds = slowest,
                .bytes = sent,
                .limit = LinkLimit(sent, link)});
  }
}

}  // namespace switchyard::bench
