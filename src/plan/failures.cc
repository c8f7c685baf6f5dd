#include "plan/failures.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>
#include <tuple>

#include "core/error.h"

namespace switchyard::plan {

RankFailure ParseFailure(const std::string& text) {
  RankFailure failure;
  const char* const end = text.data() + text.size();
  const auto [at, rank_error] = std::from_chars(text.data(), end, failure.rank);
  bool valid = rank_error == std::errc() && at != end && *at == '@' && failure.rank >= 0;
  if (valid) {
    const auto [last, error] = std::from_chars(at + 1, end, failure.seconds);
    valid = error == std::errc() && last == end && std::isfinite(failure.seconds) &&
            failure.seconds >= 0;
  }
  if (!valid) throw Invalid("--fail {}: want RANK@SECONDS, like 3@12.5", text);
  return failure;
}

std::vector<std::vector<RankFailure>> FailuresOf(const FailureOptions& options, int engines,
                                                 int ranks, double end) {
  std::vector<RankFailure> all;
  const int64_t cluster = int64_t{engines} * ranks;
  for (const RankFailure& failure : options.listed) {
    if (failure.rank >= cluster)
      throw Invalid("--fail {}@{}: the cluster has ranks 0 to {}", failure.rank, failure.seconds,
                    cluster - 1);
    all.push_back(failure);
  }
  std::mt19937_64 random(options.seed);
  const double rate = options.per_day * static_cast<double>(cluster) / 86'400;
  constexpr double kMostFailures = 1e9;
  if (rate * end > kMostFailures)
    throw Invalid("--fail-rate {}: ranks would end about {:.2g} times; want at most {:.0e}",
                  options.per_day, rate * end, kMostFailures);
  for (double at = 0; rate > 0;) {
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0;
    at -= std::log(uniform) / rate;
    if (at > end) break;
    all.push_back({static_cast<int64_t>(random() % static_cast<uint64_t>(cluster)), at});
  }
  std::ranges::sort(all, {}, [](const RankFailure& f) { return std::tuple(f.seconds, f.rank); });
  std::vector<std::vector<RankFailure>> of_engine(static_cast<size_t>(engines));
  for (const RankFailure& failure : all)
    of_engine[failure.rank / ranks].push_back({failure.rank % ranks, failure.seconds});
  return of_engine;
}

Recovery RecoveryOf(const FailureOptions& options, const Question& q, const Evaluation& layout) {
  const bool cuda = q.cluster.cuda;
  Recovery recovery{.serves_without = q.config.elastic_ep_backend == "mooncake",
                    .keeps_cache = !cuda && !q.model.has_states(),
                    .settle_seconds = cuda ? 3.0 : 0.02,
                    .load_rate = kLoadRate};
  recovery.load_seconds =
      options.restart_seconds > 0
          ? options.restart_seconds
          : recovery.settle_seconds + layout.largest().memory.weights.total() / kLoadRate;
  return recovery;
}

}  // namespace switchyard::plan
