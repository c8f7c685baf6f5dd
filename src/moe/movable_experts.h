// A model's MoE layers as whoever moves their experts sees them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "moe/layer.h"
#include "moe/placement.h"

namespace switchyard {

// A layer as it is to be: this rank's experts under a new placement, all of them in memory.
struct PreparedLayer {
  int layer = 0;
  ExpertPlacement placement;
  std::vector<OwnedExpert> experts;  // those of ExpertsOfRank(...)
  int loaded = 0;                    // of them came from the checkpoint
  int received = 0;                  // and from other ranks
};

// One rank's layers. Outlives whoever moves them.
class MovableExperts {
 public:
  // Called with the bytes of each expert before it is loaded. May wait; what it throws ends
  // Prepare.
  using Pace = std::function<void(size_t bytes)>;

  using Arrived = std::map<int32_t, OwnedExpert>;  // by logical expert

  virtual ~MovableExperts() = default;
  virtual std::vector<int> layers() const = 0;  // those with experts, ascending
  virtual const ExpertPlacement& PlacementOf(int layer) const = 0;
  // Whether an expert costs less from a rank that holds it than from the checkpoint, where it would
  // be converted again.
  virtual bool sends() const { return false; }
  // The expert at a place of this rank, by its index among the rank's; the rank's thread.
  virtual OwnedExpert Held(int layer, int local) const = 0;
  // Any one thread, while passes run; the layer is not switched meanwhile. Experts that the rank
  // holds already or that have arrived are shared, others are loaded. Throws the loader's errors;
  // the layer stays as it is.
  virtual PreparedLayer Prepare(int layer, const ExpertPlacement& placement, const Arrived& arrived,
                                const Pace& pace) = 0;
  // The rank's thread, between two passes, before the same pass on every rank. Returns what the
  // layer had: letting go of it may take time.
  virtual std::vector<OwnedExpert> Switch(PreparedLayer prepared) = 0;
};

}  // namespace switchyard
