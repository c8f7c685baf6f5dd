#include "engine/scheduler/policy.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"

namespace switchyard {
namespace {

constexpr size_t kMaxToMatch = 128;

std::span<const int32_t> Reusable(const Sequence& sequence) {
  return std::span(sequence.tokens).first(sequence.max_reusable());
}

struct Path {
  Sequence* sequence = nullptr;
  std::vector<const void*> nodes;  // in the tree, from the root's child on
};

// Appends `paths`, which share their first `depth` nodes and are in order of arrival. Paths that
// continue come first, grouped by child, then paths that end at this depth.
void DepthFirst(const std::vector<Path*>& paths, size_t depth, std::vector<Sequence*>* out) {
  std::vector<std::vector<Path*>> children;  // ordered by their oldest request, not by address
  std::map<const void*, size_t> child_of;
  std::vector<Path*> ending;
  for (Path* path : paths) {
    if (path->nodes.size() == depth) {
      ending.push_back(path);
      continue;
    }
    const auto [it, added] = child_of.try_emplace(path->nodes[depth], children.size());
    if (added) children.emplace_back();
    children[it->second].push_back(path);
  }
  std::ranges::stable_sort(children, std::ranges::greater(), &std::vector<Path*>::size);
  for (const std::vector<Path*>& child : children) DepthFirst(child, depth + 1, out);
  for (Path* path : ending) out->push_back(path->sequence);
}

void ByTree(const KvCache& cache, std::vector<Sequence*>* sequences) {
  std::vector<Path> paths;
  for (Sequence* sequence : *sequences)
    paths.push_back(
        {sequence, cache.Peek(Reusable(*sequence), sequence->request.cache_salt).nodes});
  std::vector<Path*> pointers;
  pointers.reserve(paths.size());
  for (Path& path : paths) pointers.push_back(&path);
  sequences->clear();
  DepthFirst(pointers, 0, sequences);
}

// Sorts by descending key. Sequences with equal keys keep their order.
template <typename Key>
void ByKey(std::vector<Sequence*>* sequences, const Key& key) {
  using Keyed = std::pair<decltype(key(sequences->front())), Sequence*>;
  std::vector<Keyed> keyed;
  for (Sequence* sequence : *sequences) keyed.emplace_back(key(sequence), sequence);
  std::ranges::stable_sort(keyed, std::ranges::greater(), &Keyed::first);
  std::ranges::transform(keyed, sequences->begin(), &Keyed::second);
}

}  // namespace

SchedulePolicy ParseSchedulePolicy(const std::string& name) {
  constexpr std::array kNames = {
      std::pair{"fcfs", SchedulePolicy::kFcfs}, std::pair{"lpm", SchedulePolicy::kLpm},
      std::pair{"dfs-weight", SchedulePolicy::kDfsWeight}, std::pair{"lof", SchedulePolicy::kLof},
      std::pair{"random", SchedulePolicy::kRandom}};
  for (const auto& [known, policy] : kNames)
    if (name == known) return policy;
  throw Invalid("--schedule-policy {}: want fcfs, lpm, dfs-weight, lof or random", name);
}

void OrderWaiting(SchedulePolicy policy, const KvCache& cache, uint64_t step,
                  WaitingQueue* waiting) {
  const bool by_cache = policy == SchedulePolicy::kLpm || policy == SchedulePolicy::kDfsWeight;
  if (policy == SchedulePolicy::kFcfs || waiting->size() < 2) return;
  if (by_cache && (!cache.reuses_prefixes() || waiting->size() > kMaxToMatch))
    policy = SchedulePolicy::kFcfs;
  const auto retracted = [](const Sequence* s) { return s->admitted_before; };
  std::vector<Sequence*> order = waiting->InOrder();
  const auto first_new = std::ranges::find_if_not(order, retracted);
  std::vector<Sequence*> sequences(first_new, order.end());
  // Restores the order of arrival, which earlier steps may have changed. Ids ascend by arrival.
  std::ranges::sort(sequences, {}, [](const Sequence* s) { return s->request.id; });
  if (policy == SchedulePolicy::kLpm) {
    ByKey(&sequences, [&](const Sequence* s) {
      return cache.Peek(Reusable(*s), s->request.cache_salt).tokens;
    });
  } else if (policy == SchedulePolicy::kDfsWeight) {
    ByTree(cache, &sequences);
  } else if (policy == SchedulePolicy::kLof) {
    ByKey(&sequences, [](const Sequence* s) { return s->request.sampling.max_new_tokens; });
  } else if (policy == SchedulePolicy::kRandom) {
    ByKey(&sequences,
          [step](const Sequence* s) { return SplitMix64(step ^ SplitMix64(s->request.id)); });
  }
  std::ranges::copy(sequences, first_new);
  waiting->SetOrder(order);
}

void OrderByPriority(WaitingQueue* waiting) {
  std::vector<Sequence*> sequences = waiting->InOrder();
  const auto priority = [](const Sequence* s) { return s->request.priority; };
  if (std::ranges::is_sorted(sequences, std::ranges::greater(), priority)) return;
  std::ranges::stable_sort(sequences, std::ranges::greater(), priority);
  waiting->SetOrder(sequences);
}

}  // namespace switchyard
