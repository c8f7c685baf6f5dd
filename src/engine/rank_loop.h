// The serving loop of a rank after loading, independent of the model, for tests.
#pragma once

#include <memory>
#include <span>

#include "comm/device/communicator.h"
#include "engine/kept_weights.h"
#include "engine/pipeline/stage_links.h"
#include "engine/rank_engine.h"
#include "eplb/manager.h"
#include "eplb/recorder.h"
#include "model/model.h"
#include "profile/profiler.h"

namespace switchyard {

// Runs `engine` until Shutdown. Rank 0 receives messages and sends answers; all ranks get the
// messages by broadcast and step together. Ranks of an attention group run the same steps. While no
// group has work, the leader blocks in `receive` and the other ranks wait for it. `recorder`
// handles RecordExperts and GetExpertLoad, `eplb` handles RebalanceExperts and GetEplb, `profiler`
// handles StartProfile and StopProfile and records the steps. If a handler is null, its messages
// are refused. With stages, `eplb` is null on a stage without experts. `model` has the weights that
// GetWeightChecksums checks. `caches`: those whose memory ChangeCache frees; none: it is refused.
// `links`: of a pipeline stage; null: there is one stage. Each stage runs the loop. Its first rank
// receives the messages from the stage before, and only the first stage sends answers. An error
// aborts the arena before it is rethrown. So the other ranks stop immediately, although destructors
// may have to wait for loading or planning threads.
void ServeRequests(RankEngine& engine, RankComm& comm, const RankLoopIo& io,
                   ExpertRecorder* recorder = nullptr, EplbManager* eplb = nullptr,
                   profile::Profiler* profiler = nullptr, StageLinks* links = nullptr,
                   Model* model = nullptr, std::span<KvStorage* const> caches = {});

// Loads the model and serves during one epoch. Only `kept` outlives the epoch. `config` and
// `whole`: of the active ranks. `rank`: in the arena. `group`: the rank's attention group if all
// ranks are active. `weights`: those of `kept` for this epoch.
void LoadAndServe(const EngineConfig& config, const EnginePlan& whole, int rank, int group,
                  std::shared_ptr<SharedArena> arena, const RankLoopIo& io, LoadedWeights weights,
                  KeptWeights* kept);

// Compares the fingerprint of each batch over the attention group, then passes the batch to
// `model`. If fingerprints differ, a bug has made the schedulers of the ranks diverge. Then it
// throws Error kPeer, because a continued run would deadlock or mix tokens. Borrows `model` and
// `group`.
class CheckedForward : public ForwardFunction {
 public:
  CheckedForward(ForwardFunction& model, Communicator& group, int32_t page_size)
      : model_(model), group_(group), page_size_(page_size) {}
  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.vocab_size(); }
  Pooling pooling() const override { return model_.pooling(); }
  int64_t output_width() const override { return model_.output_width(); }
  bool draws() const override { return model_.draws(); }
  std::span<const int32_t> drawn() const override { return model_.drawn(); }
  void AbortPass(uint64_t pass) override { model_.AbortPass(pass); }
  bool aborted() const override { return model_.aborted(); }
  bool launches() const override { return model_.launches(); }
  bool launches_together() const override { return model_.launches_together(); }
  void Launch(const ForwardBatch& batch) override;
  std::span<const int32_t> Collect() override { return model_.Collect(); }
  std::span<const int32_t> routed_experts() const override { return model_.routed_experts(); }
  int64_t routed_width() const override { return model_.routed_width(); }
  void MoveRows(std::span<const SlotMove> moves) override { model_.MoveRows(moves); }
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override {
    return model_.RouterFaults(batch);
  }

 private:
  void Compare(const ForwardBatch& batch);

  ForwardFunction& model_;
  Communicator& group_;
  const int32_t page_size_;
};

}  // namespace switchyard
