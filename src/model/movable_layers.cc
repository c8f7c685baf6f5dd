#include "model/movable_layers.h"

#include <algorithm>
#include <span>
#include <utility>

namespace switchyard {
namespace {

std::span<const int32_t> OwnExperts(const ExpertPlacement& placement, const Mesh& mesh) {
  const Range own = ExpertsOfRank(placement.num_physical(), mesh);
  return placement.physical_to_logical().subspan(own.begin, own.size());
}

}  // namespace

std::vector<int> MovableLayers::layers() const {
  std::vector<int> numbers;
  for (const auto& [number, layer] : layers_) numbers.push_back(number);
  return numbers;
}

bool MovableLayers::sends() const {
  return same_formats_ && loader_->Converts() &&
         std::ranges::all_of(layers_, [](const auto& entry) { return entry.second->readable(); });
}

PreparedLayer MovableLayers::Prepare(int layer, const ExpertPlacement& placement,
                                     const Arrived& arrived, const Pace& pace) {
  const MoeLayer& moe = *layers_.at(layer);
  std::map<int32_t, OwnedExpert> have;  // by logical expert; replicas share one
  const std::span<const int32_t> before = OwnExperts(moe.placement(), mesh_);
  for (size_t i = 0; i < before.size(); ++i)
    have.try_emplace(before[i], moe.Held(static_cast<int>(i)));
  PreparedLayer prepared{.layer = layer, .placement = placement};
  const size_t bytes = loader_->BytesPerExpert(layer);
  for (const int32_t expert : OwnExperts(placement, mesh_)) {
    auto found = have.find(expert);
    if (const auto sent = arrived.find(expert); found == have.end() && sent != arrived.end()) {
      moe.CheckFormats(sent->second.weights);
      found = have.emplace(expert, moe.Stage(sent->second)).first;
      ++prepared.received;
    }
    if (found == have.end()) {
      pace(bytes);
      OwnedExpert loaded = loader_->Load(layer, expert);
      moe.CheckFormats(loaded.weights);
      found = have.emplace(expert, moe.Stage(std::move(loaded))).first;
      ++prepared.loaded;
    }
    prepared.experts.push_back(found->second);
  }
  return prepared;
}

std::vector<OwnedExpert> MovableLayers::Switch(PreparedLayer prepared) {
  return layers_.at(prepared.layer)
      ->SwitchPlacement(std::move(prepared.placement), std::move(prepared.experts));
}

}  // namespace switchyard
