// Plain copies between GPUs, and NCCL's.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "exchange_bench_ranks.h"
#include "peer_copy.h"

namespace switchyard::cuda {

double PlainCopy(const Ranks& ranks) {
  constexpr size_t kBytes = size_t{256} << 20;
  for (const auto& rank : ranks) {
    rank->Use();
    rank->memory = DeviceMemory(kBytes);
    rank->x = DeviceMemory(kBytes);
  }
  double best = 0;
  std::string line = "plain copy to a peer, GB/s:";
  for (const int blocks : {24, 66, 132, 264}) {
    const double us = Time(ranks, 4, [&](const Rank& rank, int r) {
      StartPeerCopy(rank.x.data(), ranks[(r + 1) % ranks.size()]->memory.data(), kBytes, blocks,
                    rank.stream.get());
    });
    line += fmt::format(" {:.0f} ({} blocks)", kBytes / us * 1e-3, blocks);
    best = std::max(best, kBytes / us * 1e-3);
  }
  const double engine = Time(ranks, 4, [&](const Rank& rank, int r) {
    Check(cudaMemcpyAsync(ranks[(r + 1) % ranks.size()]->memory.data(), rank.x.data(), kBytes,
                          cudaMemcpyDeviceToDevice, rank.stream.get()),
          "copy");
  });
  fmt::print("{}, {:.0f} (copy engine)\n", line, kBytes / engine * 1e-3);
  return best;
}

// The few of NCCL's functions that an all-to-all takes, as its documentation gives them.
void NcclAllToAll(const Ranks& ranks) {
  const char* folder = std::getenv("SWITCHYARD_NCCL_LIBRARY");
  void* library = dlopen("libnccl.so.2", RTLD_NOW);
  if (!library && folder)
    library = dlopen(fmt::format("{}/libnccl.so.2", folder).c_str(), RTLD_NOW);
  const int n = static_cast<int>(ranks.size());
  if (!library || n < 2 || n > DeviceCount()) {
    fmt::print("no NCCL, or no GPU for each rank\n");
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
    fmt::print("NCCL does not start\n");
    return;
  }
  fmt::print("NCCL all-to-all, MB to each rank: µs, GB/s off the rank:");
  for (const double megabytes : {0.1, 0.5, 4.0, 32.0}) {
    const auto bytes = static_cast<size_t>(megabytes * 1e6) / 16 * 16;
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
      slowest = std::max(slowest, stops[r].MillisecondsSince(starts[r]) * 1000 / kCalls);
    fmt::print("  {} {:.1f} {:.0f}", megabytes, slowest,
               static_cast<double>(bytes) * (n - 1) / slowest * 1e-3);
  }
  fmt::print("\n");
}

}  // namespace switchyard::cuda
