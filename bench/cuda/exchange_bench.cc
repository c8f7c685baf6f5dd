// Dispatch and combine of MoE rows over the GPUs of this host: hidden 7168, top-8 of 256 experts,
// even routing. µs of the slowest rank and GB/s that leave a rank, beside a plain copy to a peer
// and NCCL's all-to-all of as many bytes. One GPU: ranks that share it, which shows no link at all.
// Usage: exchange_bench [--ranks R] [--blocks B] [--stages] [tokens …]
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "moe/cuda/exchange.h"
#include "peer_copy.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kHidden = 7168;
constexpr int kTopK = 8, kExperts = 256;
constexpr int kSamples = 5;

struct Options {
  int ranks = 0, blocks = 0;
  bool stages = false;
  std::vector<int64_t> tokens;
};

struct Rank {
  explicit Rank(int device_in)
      : device((UseDevice(device_in), device_in)), report(sizeof(WaitReport)) {
    *report.as<WaitReport>() = {};
    for (int other = 0; other < DeviceCount(); ++other)
      if (other != device && cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess)
        cudaGetLastError();
  }
  int device;
  Stream stream;
  PinnedMemory report;
  DeviceMemory memory, x, ids, weights, outputs, position, y;
  std::unique_ptr<Exchange> exchange;
  std::vector<int32_t> host_ids;
  int64_t tokens = 0;

  void Use() const { UseDevice(device); }
  void BeginDispatch() const {
    exchange->BeginDispatch(
        0,
        {.x = x.data(), .ids = ids.as<int32_t>(), .weights = weights.as<float>(), .tokens = tokens},
        stream.get());
  }
  void EndDispatch() const { exchange->EndDispatch(0, stream.get()); }
  void BeginCombine() const {
    exchange->BeginCombine(0, outputs.data(), position.as<int32_t>(), stream.get());
  }
  void EndCombine() const { exchange->EndCombine(0, y.as<float>(), stream.get()); }
};
using Ranks = std::vector<std::unique_ptr<Rank>>;

void Synchronize(const Ranks& ranks) {
  for (const auto& rank : ranks) {
    rank->Use();
    rank->stream.Synchronize();
    if (const auto* report = rank->report.as<WaitReport>(); report->failed)
      throw Resource("rank {} waited for rank {} in vain, stage {}", report->rank, report->peer,
                     report->stage);
  }
}

// µs of one call, the median of samples of the slowest rank: `calls` are recorded in a graph, which
// all ranks replay at once.
double Time(const Ranks& ranks, int calls, const std::function<void(const Rank&, int)>& call) {
  std::vector<cudaGraphExec_t> graphs(ranks.size());
  std::vector<Event> starts, stops;
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r]->Use();
    starts.emplace_back();
    stops.emplace_back();
    cudaGraph_t graph = nullptr;
    Check(cudaStreamBeginCapture(ranks[r]->stream.get(), cudaStreamCaptureModeThreadLocal),
          "record");
    for (int i = 0; i < calls; ++i) call(*ranks[r], static_cast<int>(r));
    Check(cudaStreamEndCapture(ranks[r]->stream.get(), &graph), "record");
    Check(cudaGraphInstantiate(&graphs[r], graph, 0), "graph");
    Check(cudaGraphUpload(graphs[r], ranks[r]->stream.get()), "graph");
    cudaGraphDestroy(graph);
  }
  std::vector<double> samples;
  for (int sample = -1; sample < kSamples; ++sample) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r]->Use();
      starts[r].Record(ranks[r]->stream.get());
      Check(cudaGraphLaunch(graphs[r], ranks[r]->stream.get()), "replay");
      stops[r].Record(ranks[r]->stream.get());
    }
    Synchronize(ranks);
    double slowest = 0;
    for (size_t r = 0; r < ranks.size(); ++r)
      slowest = std::max(slowest, stops[r].MillisecondsSince(starts[r]) * 1000 / calls);
    if (sample >= 0) samples.push_back(slowest);
  }
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  std::ranges::sort(samples);
  return samples[kSamples / 2];
}

template <typename T>
DeviceMemory Upload(const std::vector<T>& from) {
  DeviceMemory to(from.size() * sizeof(T));
  Check(cudaMemcpy(to.data(), from.data(), to.bytes(), cudaMemcpyHostToDevice), "upload");
  return to;
}

// Fills in tokens and where outputs would lie: expert after expert, as they are computed. Returns
// rows (a token and a rank) and slots that leave a rank, on average.
struct Traffic {
  double rows = 0, slots = 0;
};
Traffic Fill(const Ranks& ranks, const ExchangeConfig& config, const ExpertMap& experts,
             int64_t tokens) {
  const int n = config.ranks;
  std::mt19937 random(5);
  Traffic traffic;
  std::vector<std::vector<int32_t>> positions(n);
  std::vector<std::vector<std::vector<int64_t>>> slots_of(n);  // [rank][local expert]
  for (int r = 0; r < n; ++r) {
    positions[r].assign(n * config.max_tokens * kTopK, -1);
    slots_of[r].resize(experts.LocalExperts(r));
  }
  for (int s = 0; s < n; ++s) {
    Rank& rank = *ranks[s];
    rank.tokens = tokens;
    rank.host_ids.clear();
    std::vector<int64_t> rows(n);
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<bool> sent(n);
      std::vector<int32_t> ids;
      while (ids.size() < kTopK) {
        const auto id = static_cast<int32_t>(random() % kExperts);
        if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
      }
      for (int j = 0; j < kTopK; ++j) {
        const int owner = experts.Owner(ids[j]);
        if (!sent[owner]) ++rows[owner];
        traffic.rows += owner != s && !sent[owner];
        traffic.slots += owner != s;
        sent[owner] = true;
        slots_of[owner][experts.LocalId(ids[j])].push_back(
            (s * config.max_tokens + rows[owner] - 1) * kTopK + j);
      }
      rank.host_ids.insert(rank.host_ids.end(), ids.begin(), ids.end());
    }
  }
  for (int r = 0; r < n; ++r) {
    Rank& rank = *ranks[r];
    rank.Use();
    int32_t next = 0;
    for (const auto& slots : slots_of[r])
      for (const int64_t slot : slots) positions[r][slot] = next++;
    std::vector<float> x(tokens * kHidden);
    for (float& value : x)
      value = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-3f;
    rank.x = Upload(x);
    rank.ids = Upload(rank.host_ids);
    rank.weights = Upload(std::vector<float>(tokens * kTopK, 0.125f));
    rank.position = Upload(positions[r]);
    rank.outputs = DeviceMemory(next * kHidden * SizeOf(config.combined));
    rank.y = DeviceMemory(tokens * kHidden * sizeof(float));
  }
  traffic.rows /= n;
  traffic.slots /= n;
  return traffic;
}

std::string Cell(double us, double bytes, double plain) {
  const double rate = bytes / us * 1e-3;
  return fmt::format("{:>8.1f} {:>4.0f} {:>3.0f}%", us, rate, rate / plain * 100);
}

// Times between events after each of the four calls, of rank 0.
std::string Stages(const Ranks& ranks) {
  constexpr int kRuns = 9;
  const std::function<void(const Rank&)> calls[] = {
      [](const Rank& r) { r.BeginDispatch(); }, [](const Rank& r) { r.EndDispatch(); },
      [](const Rank& r) { r.BeginCombine(); }, [](const Rank& r) { r.EndCombine(); }};
  ranks[0]->Use();
  std::vector<std::vector<Event>> events(kRuns);
  for (auto& run : events)
    for (int i = 0; i < 5; ++i) run.emplace_back();
  for (int run = 0; run < kRuns; ++run) {
    ranks[0]->Use();
    events[run][0].Record(ranks[0]->stream.get());
    for (int i = 0; i < 4; ++i) {
      for (const auto& rank : ranks) {
        rank->Use();
        calls[i](*rank);
      }
      ranks[0]->Use();
      events[run][i + 1].Record(ranks[0]->stream.get());
    }
  }
  Synchronize(ranks);
  std::string text = "   send, wait, return, sum:";
  for (int i = 0; i < 4; ++i) {
    std::vector<double> samples;
    for (int run = 2; run < kRuns; ++run)
      samples.push_back(events[run][i + 1].MillisecondsSince(events[run][i]) * 1000);
    std::ranges::sort(samples);
    text += fmt::format(" {:.1f}", samples[samples.size() / 2]);
  }
  return text;
}

void Case(const Ranks& ranks, int64_t tokens, bool fp8, bool by_rank, const Options& options,
          double plain) {
  const int n = static_cast<int>(ranks.size());
  ExchangeConfig config = {.ranks = n,
                           .hidden = kHidden,
                           .top_k = kTopK,
                           .max_tokens = tokens,
                           .dispatched = {.dtype = DType::kBF16, .fp8 = fp8},
                           .combined = DType::kBF16,
                           .sum_by_rank = by_rank,
                           .low_latency = tokens <= 256,
                           .in_flight = 1,
                           .blocks = options.blocks};
  const ExpertMap experts(kExperts, n, false);
  ExchangePeers peers;
  for (int r = 0; r < n; ++r) {
    ranks[r]->Use();
    ranks[r]->exchange = nullptr;
    ranks[r]->memory = DeviceMemory();
    ranks[r]->memory = DeviceMemory(Exchange::PeerBytes(config));
    peers.memory.at[r] = ranks[r]->memory.data();
  }
  for (int r = 0; r < n; ++r) {
    ranks[r]->Use();
    config.rank = r;
    peers.limit = {ranks[r]->report.as<WaitReport>(), 5'000'000'000, r};
    ranks[r]->exchange = std::make_unique<Exchange>(config, experts, peers);
  }
  const Traffic traffic = Fill(ranks, config, experts, tokens);
  for (const auto& rank : ranks) {
    rank->Use();
    Check(cudaDeviceSynchronize(), "upload");
  }
  const int calls = tokens <= 256 ? 40 : 6;
  const double dispatch = Time(ranks, calls, [](const Rank& rank, int) {
    rank.BeginDispatch();
    rank.EndDispatch();
  });
  const double all = Time(ranks, calls, [](const Rank& rank, int) {
    rank.BeginDispatch();
    rank.EndDispatch();
    rank.BeginCombine();
    rank.EndCombine();
  });
  const double row = static_cast<double>(config.dispatched.Bytes(kHidden));
  const double returned = (by_rank ? traffic.rows : traffic.slots) * kHidden * 2;
  fmt::print("{:>6} {:>5} {:>5} {} {}{}\n", tokens, fp8 ? "fp8" : "bf16", by_rank ? "rank" : "slot",
             Cell(dispatch, traffic.rows * row, plain), Cell(all - dispatch, returned, plain),
             options.stages ? Stages(ranks) : "");
  fflush(stdout);
}

// GB/s of copies of 256 MB, of all ranks at once, each to the next.
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

void Run(Options options) {
  if (DeviceCount() == 0) throw Resource("no GPU");
  if (options.ranks == 0) options.ranks = std::max(2, std::min(8, DeviceCount()));
  // Kernels of one rank wait for those of others: on one GPU they have to fit beside one another.
  if (options.blocks == 0 && options.ranks > DeviceCount()) options.blocks = 16;
  if (options.tokens.empty()) options.tokens = {8, 128, 1024, 4096};
  Ranks ranks;
  for (int r = 0; r < options.ranks; ++r)
    ranks.push_back(std::make_unique<Rank>(r % DeviceCount()));
  fmt::print("{} ranks on {} GPUs, hidden {}, top-{} of {}\n", options.ranks, DeviceCount(),
             kHidden, kTopK, kExperts);
  const double plain = PlainCopy(ranks);
  fmt::print("tokens  rows  sums   dispatch GB/s         combine GB/s\n");
  for (const int64_t tokens : options.tokens) {
    Case(ranks, tokens, true, false, options, plain);
    Case(ranks, tokens, false, true, options, plain);
  }
  if (options.blocks == 0) NcclAllToAll(ranks);
}

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--stages") {
      options.stages = true;
    } else if (arg == "--ranks" && i + 1 < argc) {
      options.ranks = std::atoi(argv[++i]);
    } else if (arg == "--blocks" && i + 1 < argc) {
      options.blocks = std::atoi(argv[++i]);
    } else {
      options.tokens.push_back(std::atoll(arg.c_str()));
    }
  }
  return options;
}

}  // namespace
}  // namespace switchyard::cuda

int main(int argc, char** argv) {
  try {
    switchyard::cuda::Run(switchyard::cuda::Parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
