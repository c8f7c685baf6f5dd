// `--ep-dispatch-algorithm` of running layers.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "eplb/replica_choice.h"
#include "moe/replica_chooser.h"

namespace switchyard {

// One per rank; its thread. `balanced` and `lp` divide the tokens that this rank routes in a round;
// ranks that route the same tokens choose alike, since nothing else decides; those that route
// tokens of their own begin at different replicas.
class BatchReplicas : public ReplicaChooser {
 public:
  // `scatters`: ranks route tokens of their own (ScattersTokens). Not for kStatic, which layers do
  // themselves.
  BatchReplicas(EpDispatchAlgorithm algorithm, const Mesh& mesh, bool scatters);

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void Choose(int layer, const TopK& logical, TopK* physical) override;

 private:
  struct Layer {
    ExpertLocation location;
    BatchDivider divider;
    int64_t tokens = 0;  // chosen for so far
  };
  void ChooseAtRandom(int number, Layer& layer, const TopK& logical, TopK* physical) const;
  void Divide(Layer& layer, const TopK& logical, TopK* physical);

  const EpDispatchAlgorithm algorithm_;
  const RankTopology topology_;
  const uint64_t seed_;
  std::map<int, Layer> layers_;
  std::vector<int32_t> counts_, shares_, ordinal_;  // scratch
};

}  // namespace switchyard
