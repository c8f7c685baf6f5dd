// The part of a rank's loop that follows loading, apart from any model, for tests.
#pragma once

#include "comm/device/communicator.h"
#include "engine/rank_engine.h"
#include "eplb/manager.h"
#include "eplb/recorder.h"

namespace switchyard {

// Runs `engine` until Shutdown: rank 0 receives messages and sends answers, all ranks get the
// messages by broadcast and step together, those of an attention group alike. While no group has
// anything to do, the leader blocks in `receive` and the others wait for it.
// `recorder`: who answers RecordExperts and GetExpertLoad, `eplb`: RebalanceExperts and GetEplb;
// null: they are refused.
// An error aborts the arena before it is rethrown: what is then taken apart may have to wait for
// threads that load or plan, and nobody is to wait for that.
void ServeRequests(RankEngine& engine, RankComm& comm, const RankLoopIo& io,
                   ExpertRecorder* recorder = nullptr, EplbManager* eplb = nullptr);

// What `recorder` answers to those of `messages` that are for it, on rank 0; others answer nothing.
// Collective.
std::vector<EngineMessage> ApplyToRecorder(const std::vector<ControlMessage>& messages,
                                           ExpertRecorder* recorder, bool is_leader);

// Passes batches on to `model` after comparing their fingerprints over the attention group. Ranks
// whose batches differ have different schedulers, which is a bug in what they were told or in how
// they count; going on would deadlock or mix tokens. Borrows both.
class CheckedForward : public ForwardFunction {
 public:
  CheckedForward(ForwardFunction& model, Communicator& group, int32_t page_size)
      : model_(model), group_(group), page_size_(page_size) {}
  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.vocab_size(); }
  std::span<const int32_t> routed_experts() const override { return model_.routed_experts(); }
  int64_t routed_width() const override { return model_.routed_width(); }
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override {
    return model_.RouterFaults(batch);
  }

 private:
  ForwardFunction& model_;
  Communicator& group_;
  const int32_t page_size_;
};

}  // namespace switchyard
