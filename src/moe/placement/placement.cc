#include "moe/placement/placement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {

Range ExpertsOfRank(int num_physical, int ep, int ep_rank, std::span<const int32_t> slots) {
  if (slots.empty()) return EvenPart(num_physical, ep, ep_rank);
  CHECK_EQ(static_cast<int>(slots.size()), ep);
  CHECK_EQ(std::accumulate(slots.begin(), slots.end(), int64_t{0}), num_physical);
  const int64_t begin = std::accumulate(slots.begin(), slots.begin() + ep_rank, int64_t{0});
  return {begin, begin + slots[ep_rank]};
}

Range ExpertsOfRank(int num_physical, const Mesh& mesh) {
  return ExpertsOfRank(num_physical, mesh.ep(), mesh.ep_rank(), mesh.shape().expert_slots);
}

int32_t NearReplica(std::span<const int32_t> replicas, int32_t expert, int rank,
                    std::span<const int> rank_of, int ranks_per_node) {
  const auto here = [&](int32_t place) { return rank_of[place] == rank; };
  const auto near = [&](int32_t place) {
    return rank_of[place] / ranks_per_node == rank / ranks_per_node;
  };
  const auto in_turn = [&](const auto& fits) -> int32_t {
    const auto count = std::ranges::count_if(replicas, fits);
    if (count == 0) return -1;
    auto skip = (rank + expert) % count;
    for (const int32_t place : replicas)
      if (fits(place) && skip-- == 0) return place;
    return -1;
  };
  if (const int32_t place = in_turn(here); place >= 0) return place;
  if (const int32_t place = in_turn(near); place >= 0) return place;
  return replicas[(rank + expert) % replicas.size()];
}

ExpertPlacement ExpertPlacement::Trivial(int num_logical, int redundant) {
  std::vector<int32_t> map(num_logical + redundant);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i % num_logical);
  return ExpertPlacement(num_logical, std::move(map));
}

ExpertPlacement::ExpertPlacement(int num_logical, std::vector<int32_t> physical_to_logical)
    : num_logical_(num_logical), physical_to_logical_(std::move(physical_to_logical)) {
  std::vector<bool> placed(num_logical, false);
  for (size_t i = 0; i < physical_to_logical_.size(); ++i) {
    const int32_t logical = physical_to_logical_[i];
    if (logical < 0 || logical >= num_logical)
      throw Invalid("physical expert {} maps to logical expert {}; the model has {}", i, logical,
                    num_logical);
    placed[logical] = true;
    identity_ = identity_ && logical == static_cast<int32_t>(i);
  }
  const auto missing = std::ranges::find(placed, false);
  if (missing != placed.end())
    throw Invalid("logical expert {} has no physical expert", missing - placed.begin());
}

std::vector<std::vector<int32_t>> ExpertPlacement::AllReplicas() const {
  std::vector<std::vector<int32_t>> replicas(num_logical_);
  for (int32_t p = 0; p < num_physical(); ++p) replicas[physical_to_logical_[p]].push_back(p);
  return replicas;
}

std::vector<int32_t> ExpertPlacement::CommonReplicas() const {
  std::vector<int32_t> chosen;
  for (const std::vector<int32_t>& all : AllReplicas())
    chosen.push_back(all[chosen.size() % all.size()]);
  return chosen;
}

std::vector<int32_t> ExpertPlacement::ReplicasFor(int ep, int ep_rank, int nodes,
                                                  std::span<const int32_t> slots) const {
  CHECK(nodes >= 1 && ep % nodes == 0);
  std::vector<int> rank_of(num_physical());
  for (int rank = 0; rank < ep; ++rank) {
    const Range range = ExpertsOfRank(num_physical(), ep, rank, slots);
    std::fill(rank_of.begin() + range.begin, rank_of.begin() + range.end, rank);
  }
  std::vector<int32_t> chosen;
  for (const std::vector<int32_t>& all : AllReplicas())
    chosen.push_back(
        NearReplica(all, static_cast<int32_t>(chosen.size()), ep_rank, rank_of, ep / nodes));
  return chosen;
}

ExpertMap::ExpertMap(int num_physical, int ep, bool shared_dispatched,
                     std::span<const int32_t> slots)
    : places_(num_physical) {
  for (int rank = 0; rank < ep; ++rank) {
    const Range range = ExpertsOfRank(num_physical, ep, rank, slots);
    for (int e = range.begin; e < range.end; ++e)
      places_[e] = {rank, static_cast<int32_t>(e - range.begin)};
    local_experts_.push_back(static_cast<int32_t>(range.size()));
  }
  if (!shared_dispatched) return;
  for (int rank = 0; rank < ep; ++rank) places_.push_back({rank, local_experts_[rank]++});
}

}  // namespace switchyard
