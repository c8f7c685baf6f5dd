// The MoE layers of a model, whose experts can move while it runs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/weights/expert_loader.h"
#include "moe/layer.h"
#include "moe/placement/movable_experts.h"

namespace switchyard {

// Borrows layers, whose addresses must be stable. Has the threading rules of MovableExperts.
// `same_formats`: whether all ranks hold experts in the same formats, so that they may send them.
class MovableLayers : public MovableExperts {
 public:
  MovableLayers(std::map<int, MoeLayer*> layers, std::unique_ptr<const ExpertLoader> loader,
                const Mesh& mesh, bool same_formats)
      : layers_(std::move(layers)),
        loader_(std::move(loader)),
        mesh_(mesh),
        same_formats_(same_formats) {}

  std::vector<int> layers() const override;
  const ExpertPlacement& PlacementOf(int layer) const override {
    return layers_.at(layer)->placement();
  }
  bool sends() const override;
  OwnedExpert Held(int layer, int local) const override { return layers_.at(layer)->Expert(local); }
  PreparedLayer Prepare(int layer, const ExpertPlacement& placement, const Arrived& arrived,
                        const Pace& pace) override;
  std::vector<OwnedExpert> Switch(PreparedLayer prepared) override;

 private:
  const std::map<int, MoeLayer*> layers_;
  const std::unique_ptr<const ExpertLoader> loader_;
  const Mesh mesh_;
  const bool same_formats_;
};

}  // namespace switchyard
