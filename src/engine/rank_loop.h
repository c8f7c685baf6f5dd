// The part of a rank's loop that follows loading, apart from any model, for tests.
#pragma once

#include "comm/device/communicator.h"
#include "engine/rank_engine.h"

namespace switchyard {

// Runs `engine` until Shutdown: member 0 of `group` receives messages and sends answers, all
// members get the messages by broadcast and step alike. An idle leader blocks in `receive`; the
// others wait for it.
void ServeRequests(RankEngine& engine, Communicator& group, const RankLoopIo& io);

// Passes batches on to `model` after comparing their fingerprints over the group. Ranks whose
// batches differ have different schedulers, which is a bug in what they were told or in how they
// count; going on would deadlock or mix tokens. Borrows both.
class CheckedForward : public ForwardFunction {
 public:
  CheckedForward(ForwardFunction& model, Communicator& group, int32_t page_size)
      : model_(model), group_(group), page_size_(page_size) {}
  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.vocab_size(); }

 private:
  ForwardFunction& model_;
  Communicator& group_;
  const int32_t page_size_;
};

}  // namespace switchyard
