// A layout of the ranks. It starts the ranks of each epoch that runs in this layout.
#pragma once

#include <functional>
#include <memory>

#include "server/ranks/engine_ranks.h"

namespace switchyard {

// Owned by Supervisor while the layout is in use. Used by one thread at a time.
class RankLayout {
 public:
  virtual ~RankLayout() = default;
  // Starts the ranks of the next epoch. Polls `give_up` while it waits, and returns null if
  // `give_up` returned true. If it throws an Error, the layout is not started again.
  virtual std::unique_ptr<EngineRanks> Start(EngineRanks::Events events,
                                             std::function<bool()> give_up) = 0;
  // Ends the processes that wait for the next epoch, and frees their memory. Call after the
  // destruction of the epoch's EngineRanks.
  virtual void Release() {}
  virtual int groups() const { return 1; }  // attention groups
};

}  // namespace switchyard
