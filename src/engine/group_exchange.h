// What attention groups tell one another between steps (DP attention).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/device/communicator.h"
#include "engine/rank_engine.h"

namespace switchyard {

// One small all-gather over the world before each step: how large every group's batch is, so that
// the model can lay out the exchange of tokens, and whether anybody has anything to do. Answers of
// the groups travel with it to rank 0, which alone speaks to the front: that way only rank 0 needs
// a line to it, on whatever hosts the others are. With one group nothing is exchanged. The rank's
// thread only; borrows communicators and `io`.
class GroupExchange {
 public:
  GroupExchange(RankComm& comm, const RankLoopIo& io) : comm_(comm), io_(io) {}

  // Keeps this group's answers for the next exchange; those of all groups to one question become
  // one answer then. Outputs of group 0, which need not wait, are sent at once.
  void Post(std::vector<EngineMessage> answers);
  // Collective over the world. `counts` of this group's planned batch.
  void Run(const StepCounts& counts, bool has_work);

  const std::vector<StepCounts>& counts() const { return counts_; }  // [dp] of the last exchange
  bool any_work() const { return any_work_; }                        // of any group, likewise

 private:
  void Send(std::vector<EngineMessage> answers) const;

  RankComm& comm_;
  const RankLoopIo& io_;
  std::vector<EngineMessage> posted_;  // on the first rank of each group
  std::vector<StepCounts> counts_;
  bool any_work_ = false;
};

}  // namespace switchyard
