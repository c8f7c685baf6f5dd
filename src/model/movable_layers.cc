#include "model/movable_layers.h"

#include <span>
#include <utility>

namespace switchyard {
namespace {

std::span<const int32_t> OwnExperts(const ExpertPlacement& placement, const Mesh& mesh) {
  const ExpertRange own = ExpertsOfRank(placement.num_physical(), mesh.ep(), mesh.ep_rank());
  return placement.physical_to_logical().subspan(own.begin, own.end - own.begin);
}

}  // namespace

std::vector<int> MovableLayers::layers() const {
  std::vector<int> numbers;
  for (const auto& [number, layer] : layers_) numbers.push_back(number);
  return numbers;
}

PreparedLayer MovableLayers::Prepare(int layer, const ExpertPlacement& placement,
                                     const Arrived& arrived, const Pace& pace) {
  const MoeLayer& moe = *layers_.at(layer);
  std::map<int32_t, OwnedExpert> have;  // by logical expert; replicas share one
  const std::span<const int32_t> before = OwnExperts(moe.placement(), mesh_);
  for (size_t i = 0; i < before.size(); ++i)
    have.try_emplace(before[i], moe.Expert(static_cast<int>(i)));
  PreparedLayer prepared{.layer = layer, .placement = placement};
  const size_t bytes = loader_->BytesPerExpert(layer);
  for (const int32_t expert : OwnExperts(placement, mesh_)) {
    auto found = have.find(expert);
    if (const auto sent = arrived.find(expert); found == have.end() && sent != arrived.end()) {
      found = have.insert(*sent).first;
      ++prepared.received;
    }
    if (found == have.end()) {
      pace(bytes);
      found = have.emplace(expert, loader_->Load(layer, expert)).first;
      moe.CheckFormats(found->second.weights);
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
