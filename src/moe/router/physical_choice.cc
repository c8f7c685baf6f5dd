#include "moe/router/physical_choice.h"

#include <algorithm>

namespace switchyard {

void ToPhysical(std::span<const int32_t> replicas, const TopK& logical, TopK* physical) {
  physical->tokens = logical.tokens;
  physical->k = logical.k;
  physical->weights = logical.weights;
  physical->ids.resize(logical.ids.size());
  std::ranges::transform(logical.ids, physical->ids.begin(),
                         [&](int32_t id) { return id < 0 ? -1 : replicas[id]; });
}

namespace {

// A rank that may get the shared expert's slot of a token. Candidates are compared by rows, then by
// distance, then by rank; the smallest one is selected.
struct Candidate {
  int64_t rows;
  int distance;  // 0: this rank; 1: a rank that receives the token's row anyway; 2: another rank
  int rank;
  // clang-tidy takes the comparison with 0 for one with a pointer.
  auto operator<=>(const Candidate&) const = default;  // NOLINT(modernize-use-nullptr)
};

}  // namespace

void AppendSharedSlots(const ExpertMap& experts, int ranks, int this_rank,
                       std::span<const uint8_t> active, const float* weights, TopK* physical) {
  const int k = physical->k, wide = k + 1;
  const int first_shared = experts.size() - ranks;
  std::vector<int64_t> rows(ranks, 0);
  for (const int32_t id : physical->ids)
    if (id >= 0) ++rows[experts.Owner(id)];

  std::vector<int32_t> ids(physical->tokens * wide);
  std::vector<float> slot_weights(ids.size());
  std::vector<bool> visited(ranks);
  for (int64_t t = 0; t < physical->tokens; ++t) {
    std::fill(visited.begin(), visited.end(), false);
    for (int j = 0; j < k; ++j) {
      ids[t * wide + j] = physical->ids[t * k + j];
      slot_weights[t * wide + j] = physical->weights[t * k + j];
      if (ids[t * wide + j] >= 0) visited[experts.Owner(ids[t * wide + j])] = true;
    }
    Candidate best{rows[this_rank], 0, this_rank};
    for (int rank = 0; rank < ranks; ++rank) {
      if (!active.empty() && active[rank] == 0) continue;
      const int distance = rank == this_rank ? 0 : visited[rank] ? 1 : 2;
      best = std::min(best, Candidate{rows[rank], distance, rank});
    }
    ++rows[best.rank];
    ids[t * wide + k] = first_shared + best.rank;
    slot_weights[t * wide + k] = weights ? weights[t] : 1.0f;
  }
  physical->k = wide;
  physical->ids = std::move(ids);
  physical->weights = std::move(slot_weights);
}

}  // namespace switchyard
