// Dispatch and combine of MoE rows over the GPUs of this host: hidden 7168, top-8 of 256 experts,
// even routing. µs of the slowest rank and GB/s that leave a rank, beside a plain copy to a peer
// and NCCL's all-to-all of as many bytes. One GPU: ranks that share it, which shows no link at all.
// Usage: exchange_bench [--ranks R] [--blocks B] [--stages] [tokens …]
#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <string>

#include "exchange_bench_ranks.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kHidden = 7168;
constexpr int kTopK = 8, kExperts = 256;

struct Options {
  int ranks = 0, blocks = 0;
  bool stages = false;
  std::vector<int64_t> tokens;
};

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
