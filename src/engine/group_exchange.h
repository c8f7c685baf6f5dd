// Exchange between attention groups before each step (DP attention).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/device/communicator.h"
#include "engine/rank_engine.h"

namespace switchyard {

// One small all-gather over the world before each step. It carries the size of every group's batch,
// from which the model sizes the exchange of tokens. It also carries whether any group has work,
// and the answers of the groups for rank 0. So only rank 0 needs a connection to the front, even if
// other ranks run on other hosts. With one group nothing is exchanged. Called by the rank's thread
// only; borrows communicators and `io`.
class GroupExchange {
 public:
  GroupExchange(RankComm& comm, const RankLoopIo& io) : comm_(comm), io_(io) {}

  // Holds this group's answers until the next exchange. If all groups answer the same query, the
  // exchange merges their answers into one. Outputs of group 0 are sent immediately.
  void Post(std::vector<EngineMessage> answers);
  // Collective over the world. `counts` describes this group's planned batch.
  void Run(const StepCounts& counts, bool has_work);

  const std::vector<StepCounts>& counts() const { return counts_; }  // [dp] of the last exchange
  bool any_work() const { return any_work_; }  // whether any group had work in the last exchange

 private:
  void Send(std::vector<EngineMessage> answers) const;

  RankComm& comm_;
  const RankLoopIo& io_;
  std::vector<EngineMessage> posted_;  // filled on the first rank of each group
  std::vector<StepCounts> counts_;
  bool any_work_ = false;
};

}  // namespace switchyard
