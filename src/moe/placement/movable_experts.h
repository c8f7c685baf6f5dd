// The interface through which EPLB moves the experts of a model's MoE layers.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "moe/layer_config.h"
#include "moe/placement/placement.h"

namespace switchyard {

// A layer prepared for a new placement: all of this rank's experts, in memory.
struct PreparedLayer {
  int layer = 0;
  ExpertPlacement placement;
  std::vector<OwnedExpert> experts;  // the experts of ExpertsOfRank(...)
  int loaded = 0;                    // number loaded from the checkpoint
  int received = 0;                  // number received from other ranks
};

// The MoE layers of one rank, whose experts EPLB can move. Must outlive the objects that use it.
class MovableExperts {
 public:
  // Called before each expert is loaded, with the size of the expert in bytes. The function may
  // wait. If it throws, Prepare ends with that exception.
  using Pace = std::function<void(size_t bytes)>;

  using Arrived = std::map<int32_t, OwnedExpert>;  // by logical expert

  virtual ~MovableExperts() = default;
  virtual std::vector<int> layers() const = 0;  // the layers with experts, ascending
  virtual const ExpertPlacement& PlacementOf(int layer) const = 0;
  // Whether receiving an expert from a rank that holds it costs less than loading it from the
  // checkpoint. Loading may have to convert the expert again.
  virtual bool sends() const { return false; }
  // The expert with local index `local` on this rank. Used by the rank's thread only.
  virtual OwnedExpert Held(int layer, int local) const = 0;
  // Runs on any one thread, concurrently with passes. The layer must not be switched meanwhile.
  // Reuses experts that the rank holds or has received, and loads the others. If loading throws,
  // the exception is passed on and the layer is unchanged.
  virtual PreparedLayer Prepare(int layer, const ExpertPlacement& placement, const Arrived& arrived,
                                const Pace& pace) = 0;
  // Called on the rank's thread, between the same two passes on every rank. Returns the layer's
  // previous experts, because freeing them may take time.
  virtual std::vector<OwnedExpert> Switch(PreparedLayer prepared) = 0;
};

}  // namespace switchyard
