// Fake movable layers for tests of migration.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/error.h"
#include "moe/placement/movable_experts.h"
#include "moe/test_layer.h"

namespace switchyard {

// Fake for one rank's part of some layers; its experts have no weights. An expert's id is stored as
// the width of an empty matrix, which is transferred with the expert. `alive` counts the existing
// experts that were created here.
class FakeExperts : public MovableExperts {
 public:
  FakeExperts(int layers, const ExpertPlacement& placement, const Mesh& mesh) : mesh_(mesh) {
    for (int layer = 0; layer < layers; ++layer) {
      Layer& state = layers_[layer * 2];  // odd layers are dense
      state.placement = placement;
      for (const int32_t expert : Own(placement)) state.experts.push_back(Make(expert));
    }
  }
  ~FakeExperts() override { layers_.clear(); }

  std::vector<int> layers() const override {
    std::vector<int> numbers;
    for (const auto& [number, layer] : layers_) numbers.push_back(number);
    return numbers;
  }
  const ExpertPlacement& PlacementOf(int layer) const override {
    return layers_.at(layer).placement;
  }
  bool sends() const override { return sends_; }
  OwnedExpert Held(int layer, int local) const override { return layers_.at(layer).experts[local]; }
  PreparedLayer Prepare(int layer, const ExpertPlacement& placement, const Arrived& arrived,
                        const Pace& pace) override {
    if (on_prepare) on_prepare(layer);
    const Layer& now = layers_.at(layer);
    std::map<int32_t, OwnedExpert> have;
    const std::span<const int32_t> before = Own(now.placement);
    for (size_t i = 0; i < before.size(); ++i) have.try_emplace(before[i], now.experts[i]);
    PreparedLayer prepared{.layer = layer, .placement = placement};
    for (const int32_t expert : Own(placement)) {
      if (arrived.contains(expert) && !have.contains(expert)) {
        have[expert] = arrived.at(expert);
        ++prepared.received;
      }
      if (!have.contains(expert)) {
        pace(kBytes);
        if (on_load) on_load(layer, expert);
        have[expert] = Make(expert);
        ++prepared.loaded;
      }
      prepared.experts.push_back(have[expert]);
    }
    return prepared;
  }
  std::vector<OwnedExpert> Switch(PreparedLayer prepared) override {
    Layer& layer = layers_.at(prepared.layer);
    layer.placement = std::move(prepared.placement);
    return std::exchange(layer.experts, std::move(prepared.experts));
  }

  // The expert ids that the layer holds.
  std::vector<int32_t> Held(int layer) const {
    std::vector<int32_t> held;
    for (const OwnedExpert& expert : layers_.at(layer).experts)
      held.push_back(static_cast<int32_t>(expert.weights.gate.k));
    return held;
  }
  std::vector<int32_t> Wanted(int layer) const {
    const std::span<const int32_t> own = Own(layers_.at(layer).placement);
    return {own.begin(), own.end()};
  }
  int alive() const { return *alive_; }

  static constexpr size_t kBytes = 100;
  void SetSends(bool sends) { sends_ = sends; }
  // Called by the loading thread before each expert is loaded; may block or throw.
  std::function<void(int layer, int32_t expert)> on_load;
  std::function<void(int layer)> on_prepare;  // called by the loading thread before each layer

 private:
  struct Layer {
    ExpertPlacement placement;
    std::vector<OwnedExpert> experts;
  };

  std::span<const int32_t> Own(const ExpertPlacement& placement) const {
    const Range own = ExpertsOfRank(placement.num_physical(), mesh_);
    return placement.physical_to_logical().subspan(own.begin, own.size());
  }
  OwnedExpert Make(int32_t expert) {
    ++*alive_;
    OwnedExpert made{.owner =
                         std::shared_ptr<const void>(new char, [alive = alive_](const char* p) {
                           --*alive;
                           delete p;
                         })};
    made.weights.gate.k = expert;  // a matrix without rows
    return made;
  }

  bool sends_ = false;
  const Mesh mesh_;
  std::shared_ptr<std::atomic<int>> alive_ = std::make_shared<std::atomic<int>>(0);
  std::map<int, Layer> layers_;
};

// A placement with every expert at least once, and none twice on a rank. Ranks that use the same
// seed get the same placement.
inline ExpertPlacement RandomEvenPlacement(int experts, int redundant, int ranks, uint32_t seed) {
  kernels::Random random(seed);
  for (;;) {
    std::vector<int32_t> map = random.Shuffled(experts);
    for (int i = 0; i < redundant; ++i)
      map.insert(map.begin() + random.Below(std::ssize(map)),
                 static_cast<int32_t>(random.Below(experts)));
    bool twice = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const Range own = ExpertsOfRank(static_cast<int>(map.size()), ranks, rank);
      std::vector<int32_t> held(map.begin() + own.begin, map.begin() + own.end);
      std::ranges::sort(held);
      twice |= std::ranges::adjacent_find(held) != held.end();
    }
    if (!twice) return {experts, map};
  }
}

}  // namespace switchyard
