// Dispatch and combine of MoE rows over the GPUs of this host: hidden 7168, top-8 of 256 experts,
// uniform routing. Times are those of the slowest rank. The reported bytes are those that a rank
// sends to other ranks. The roofline is a plain copy to a peer in the same run; NCCL's all-to-all
// is printed too. If there is only one GPU, all ranks share it, and no link is measured. Cases of
// up to 256 tokens use the low-latency exchange.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/exchange_bench_ranks.h"
#include "bench/cuda/gpu_benches.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

using cuda::ExchangeConfig;
using cuda::ExchangePeers;

constexpr int64_t kHidden = 7168;
constexpr int kTopK = 8, kExperts = 256;
constexpr const char *kDispatch = "dispatch", *kCombine = "combine";

template <typename T>
DeviceMemory Upload(const std::vector<T>& from) {
  DeviceMemory to(from.size() * sizeof(T));
  cuda::CopyToDevice(to.data(), from.data(), to.bytes(), "upload");
  return to;
}

// Fill sets tokens and routing, and the position of each slot's output: outputs are ordered by
// expert, as a runner computes them. Traffic has the mean numbers of rows (one per token and
// destination rank) and of slots that a rank sends to other ranks.
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

// Median times of the four calls on rank 0, between CUDA events: name with the unit (µs), value.
std::vector<std::pair<std::string, double>> Stages(const Ranks& ranks) {
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
  std::vector<std::pair<std::string, double>> stages;
  const char* names[] = {"send us", "wait us", "return us", "sum us"};
  for (int i = 0; i < 4; ++i) {
    std::vector<double> samples;
    for (int run = 2; run < kRuns; ++run)
      samples.push_back(events[run][i + 1].MillisecondsSince(events[run][i]) * 1000);
    stages.push_back({names[i], Median(std::move(samples))});
  }
  return stages;
}

void Case(const Ranks& ranks, int64_t tokens, bool fp8, bool by_rank, const Options& options,
          double link, Report& report) {
  const int n = static_cast<int>(ranks.size());
  // Each case combines a row type of dispatch with a combine mode. Dispatch and combine are timed
  // separately.
  const std::string dispatch_shape =
      fmt::format("ranks {} tokens {} {}", n, tokens, fp8 ? "fp8" : "bf16");
  const std::string combine_shape =
      fmt::format("ranks {} tokens {} bf16 by {}", n, tokens, by_rank ? "rank" : "slot");
  if (!report.Wants(kDispatch, dispatch_shape) && !report.Wants(kCombine, combine_shape)) return;
  report.Start(kDispatch, dispatch_shape);
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
    peers.limit = {ranks[r]->report.as<WaitTimeoutReport>(), 5'000'000'000, r};
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
  report.Add({.name = kDispatch,
              .shape = dispatch_shape,
              .seconds = dispatch,
              .bytes = traffic.rows * row,
              .limit = LinkLimit(traffic.rows * row, link)});
  Result combine = {.name = kCombine,
                    .shape = combine_shape,
                    .seconds = all - dispatch,
                    .bytes = returned,
                    .limit = LinkLimit(returned, link)};
  if (options.stages) combine.more = Stages(ranks);
  report.Add(std::move(combine));
}

}  // namespace

double DispatchCombineBench(const Options& asked, Report& report) {
  Options options = asked;
  options.ranks = CudaRanks(asked, 2);
  // A kernel of one rank waits for kernels of other ranks. If ranks share a GPU, all their grids
  // have to be resident at the same time.
  if (options.blocks == 0 && options.ranks > DeviceCount()) options.blocks = 16;
  if (options.tokens.empty()) options.tokens = {8, 128, 1024, 4096};
  Ranks ranks;
  for (int r = 0; r < options.ranks; ++r)
    ranks.push_back(std::make_unique<Rank>(r % DeviceCount()));
  report.Note(fmt::format("{} ranks on {} GPUs, hidden {}, top-{} of {}", options.ranks,
                          DeviceCount(), kHidden, kTopK, kExperts));
  const double link = PlainCopy(ranks, report);
  for (const int64_t tokens : options.tokens) {
    Case(ranks, tokens, true, false, options, link, report);
    Case(ranks, tokens, false, true, options, link, report);
  }
  if (asked.blocks == 0 && options.blocks == 0) NcclAllToAll(ranks, link, report);
  return link;
}

}  // namespace switchyard::bench
