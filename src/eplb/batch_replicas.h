// Applies `--ep-dispatch-algorithm` in running layers.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "eplb/replica_choice.h"
#include "moe/router/replica_chooser.h"

namespace switchyard {

// One per rank, used by the rank's thread only. `balanced` and `lp` divide the tokens that this
// rank routes in a round. Their choice depends on these tokens only. So ranks that route the same
// tokens choose the same replicas. Ranks that route different tokens start at different replicas.
class BatchReplicas : public ReplicaChooser {
 public:
  // `scatters`: whether each rank routes its own tokens (ScattersTokens). kStatic is not supported
  // here, because layers implement it themselves.
  BatchReplicas(EpDispatchAlgorithm algorithm, const Mesh& mesh, bool scatters);

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void Choose(const RoundToChoose& round, const TopK& logical, TopK* physical) override;

 private:
  struct Layer {
    ExpertLocation location;
    BatchDivider divider;
  };
  void ChooseAtRandom(const RoundToChoose& round, const Layer& layer, const TopK& logical,
                      TopK* physical) const;
  void Divide(Layer& layer, const TopK& logical, TopK* physical);

  const EpDispatchAlgorithm algorithm_;
  const RankTopology topology_;
  const uint64_t seed_;
  std::map<int, Layer> layers_;
  std::vector<int32_t> counts_, shares_, ordinal_;  // scratch
};

}  // namespace switchyard
