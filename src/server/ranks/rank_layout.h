// A layout of the ranks: what starts the ranks of each of its epochs.
#pragma once

#include <functional>
#include <memory>

#include "server/ranks/engine_ranks.h"

namespace switchyard {

// Owned by Supervisor while the layout is in use. Used by one thread at a time.
class RankLayout {
 public:
  virtual ~RankLayout() = default;
  // Starts the ranks of the next epoch. Polls `give_up` while it waits; null if that returned true.
  // An Error is final.
  virtual std::unique_ptr<EngineRanks> Start(EngineRanks::Events events,
                                             std::function<bool()> give_up) = 0;
  // Ends the processes that wait for the next epoch, and frees their memory. Call after the
  // destruction of the epoch's EngineRanks.
  virtual void Release() {}
  virtual int groups() const { return 1; }  // attention groups
};

}  // namespace switchyard
