#include "moe/placement.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {

ExpertRange ExpertsOfRank(int num_physical, int ep, int ep_rank) {
  const Share share = EvenShare(num_physical, ep, ep_rank);
  return {static_cast<int>(share.begin), static_cast<int>(share.end)};
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
      throw Invalid("physical expert {} is to be logical expert {}; the model has {}", i, logical,
                    num_logical);
    placed[logical] = true;
    identity_ = identity_ && logical == static_cast<int32_t>(i);
  }
  const auto missing = std::ranges::find(placed, false);
  if (missing != placed.end())
    throw Invalid("no physical expert is logical expert {}", missing - placed.begin());
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

std::vector<int32_t> ExpertPlacement::ReplicasFor(int ep, int ep_rank) const {
  const ExpertRange own = ExpertsOfRank(num_physical(), ep, ep_rank);
  const std::vector<std::vector<int32_t>> replicas = AllReplicas();
  std::vector<int32_t> chosen(num_logical_);
  for (int logical = 0; logical < num_logical_; ++logical) {
    const auto& all = replicas[logical];
    const auto here =
        std::ranges::find_if(all, [&](int32_t p) { return p >= own.begin && p < own.end; });
    chosen[logical] = here != all.end() ? *here : all[ep_rank % all.size()];
  }
  return chosen;
}

namespace {

using nlohmann::json;

json ReadMap(const std::string& location) {
  std::ifstream file(location);
  if (!file)
    throw NotFound("--init-expert-location {}: no such file, and not \"trivial\"", location);
  const json map = json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto rows = map.is_object() ? map.find("physical_to_logical_map") : map.end();
  if (map.is_discarded() || !map.is_object() || rows == map.end() || !rows->is_array() ||
      rows->empty())
    throw Invalid("--init-expert-location {}: want {{\"physical_to_logical_map\": [[...], ...]}}",
                  location);
  return *rows;
}

// Error kInvalid says what is wrong with the row.
ExpertPlacement PlacementOf(const json& row, int num_logical, int redundant) {
  const auto is_id = [&](const json& id) {
    return id.is_number_integer() && id >= 0 && id < num_logical;
  };
  if (row.is_null()) return ExpertPlacement::Trivial(num_logical, redundant);
  if (!row.is_array()) throw Invalid("no list of expert ids");
  const auto other = std::ranges::find_if_not(row, is_id);
  if (other != row.end())
    throw Invalid("{} is no expert id; the model has 0 to {}", other->dump(), num_logical - 1);
  const size_t want = static_cast<size_t>(num_logical) + redundant;
  if (row.size() != want)
    throw Invalid("{} experts are placed; the model and --ep-num-redundant-experts make {}",
                  row.size(), want);
  return ExpertPlacement(num_logical, row.get<std::vector<int32_t>>());
}

}  // namespace

std::vector<ExpertPlacement> LoadPlacements(const std::string& location, int64_t num_layers,
                                            int num_logical, int redundant) {
  if (redundant < 0) throw Invalid("--ep-num-redundant-experts {}: want at least 0", redundant);
  if (location == "trivial")
    return {static_cast<size_t>(num_layers), ExpertPlacement::Trivial(num_logical, redundant)};
  const json rows = ReadMap(location);
  const auto count = static_cast<int64_t>(rows.size());
  if (count != 1 && count != num_layers)
    throw Invalid("--init-expert-location {}: it has {} layers, the model {}", location, count,
                  num_layers);
  std::vector<ExpertPlacement> placements;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    try {
      placements.push_back(PlacementOf(rows[count == 1 ? 0 : layer], num_logical, redundant));
    } catch (const Error& error) {
      throw Invalid("--init-expert-location {}: layer {}: {}", location, layer, error.what());
    }
  }
  return placements;
}

ExpertMap::ExpertMap(int num_physical, int ep, bool shared_dispatched) : places_(num_physical) {
  for (int rank = 0; rank < ep; ++rank) {
    const ExpertRange range = ExpertsOfRank(num_physical, ep, rank);
    for (int e = range.begin; e < range.end; ++e) places_[e] = {rank, e - range.begin};
    local_experts_.push_back(range.end - range.begin);
  }
  if (!shared_dispatched) return;
  for (int rank = 0; rank < ep; ++rank) places_.push_back({rank, local_experts_[rank]++});
}

}  // namespace switchyard
