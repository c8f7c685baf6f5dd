#include "route/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/error.h"
#include "route/prefix_tree.h"

namespace switchyard::route {
namespace {

const Candidate& FewestOpen(std::span<const Candidate> candidates) {
  return *std::ranges::min_element(candidates, {}, &Candidate::open);
}

class RoundRobin : public Policy {
 public:
  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    const std::lock_guard lock(mutex_);
    const auto next = std::ranges::upper_bound(candidates, last_, {}, &Candidate::worker);
    return last_ = (next == candidates.end() ? candidates.front() : *next).worker;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = -1;
};

// The less loaded of two random workers (Mitzenmacher, "The power of two choices in randomized load
// balancing", 2001).
class PowerOfTwo : public Policy {
 public:
  explicit PowerOfTwo(uint64_t seed) : random_(seed) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    if (candidates.size() == 1) return candidates.front().worker;
    const std::lock_guard lock(mutex_);
    const size_t first = random_() % candidates.size();
    size_t second = random_() % (candidates.size() - 1);
    second += second >= first;
    const Candidate &a = candidates[first], &b = candidates[second];
    return (b.open < a.open ? b : a).worker;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

class Random : public Policy {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view /*prompt*/) override {
    const std::lock_guard lock(mutex_);
    return candidates[random_() % candidates.size()].worker;
  }

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

class CacheAware : public Policy {
 public:
  explicit CacheAware(const CacheAwareOptions& options)
      : options_(options), tree_(options.max_tree_bytes) {}

  int64_t Choose(std::span<const Candidate> candidates, std::string_view prompt) override {
    const std::lock_guard lock(mutex_);
    const int64_t worker = Best(candidates, prompt);
    tree_.Insert(prompt, worker);
    return worker;
  }

  void Forget(int64_t worker) override {
    const std::lock_guard lock(mutex_);
    tree_.Remove(worker);
  }

 private:
  int64_t Best(std::span<const Candidate> candidates, std::string_view prompt) const {
    const Candidate& fewest = FewestOpen(candidates);
    const int64_t most = std::ranges::max(candidates, {}, &Candidate::open).open;
    if (most - fewest.open > options_.balance_abs_threshold &&
        static_cast<double>(most) >
            options_.balance_rel_threshold * static_cast<double>(fewest.open))
      return fewest.worker;
    if (prompt.empty()) return fewest.worker;
    std::vector<int64_t> workers;
    for (const Candidate& candidate : candidates) workers.push_back(candidate.worker);
    const PrefixTree::Match match = tree_.Find(prompt, workers);
    if (match.worker >= 0 && static_cast<double>(match.bytes) >=
                                 options_.cache_threshold * static_cast<double>(prompt.size()))
      return match.worker;
    // The worker with the smallest tree. Among trees of equal size (all are empty at first), the
    // worker with the fewest open requests.
    return std::ranges::min_element(
               candidates, {},
               [&](const Candidate& c) { return std::pair(tree_.bytes_of(c.worker), c.open); })
        ->worker;
  }

  const CacheAwareOptions options_;
  std::mutex mutex_;
  PrefixTree tree_;
};

}  // namespace

std::unique_ptr<Policy> MakePolicy(const std::string& name, const CacheAwareOptions& options,
                                   uint64_t seed) {
  if (name == "cache_aware") return std::make_unique<CacheAware>(options);
  if (name == "power_of_two") return std::make_unique<PowerOfTwo>(seed);
  if (name == "round_robin") return std::make_unique<RoundRobin>();
  if (name == "random") return std::make_unique<Random>(seed);
  throw Invalid("--policy {}: want one of {}", name, fmt::join(kPolicies, ", "));
}

}  // namespace switchyard::route
