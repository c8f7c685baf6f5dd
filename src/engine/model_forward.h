// Runs forward passes of a rank's model, with EPLB and expert recording around them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "engine/expert_services.h"
#include "engine/rank_engine.h"
#include "model/model.h"

namespace switchyard {

// One per rank, used by the rank's thread; borrows all arguments. With an EplbManager or a
// recorder, all ranks must run the same passes in the same order, and launch the same ones. The
// manager and the recorder count a launched pass when it is collected. The manager may switch the
// placement while a launched pass is in flight. The device executes pass, switch and next pass in
// this order. `beside_gpus`: the rank computes experts on CPUs for ranks on GPUs. It then launches
// passes too: Launch runs the pass, and Collect counts its routing, which all ranks do in the same
// order.
class ModelForward : public ForwardFunction {
 public:
  ModelForward(Model& model, KvStorage& kv, const ExpertServices& experts, bool beside_gpus = false)
      : model_(model),
        kv_(kv),
        recorder_(experts.recorder.get()),
        eplb_(experts.manager.get()),
        beside_gpus_(beside_gpus) {}

  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.config().vocab_size; }
  Pooling pooling() const override {
    const auto& pooling = model_.config().pooling;
    return pooling ? pooling->type : Pooling::kNone;
  }
  int64_t output_width() const override { return model_.config().output_width(); }
  bool draws() const override { return model_.draws(); }
  std::span<const int32_t> drawn() const override { return model_.drawn(); }
  void AbortPass(uint64_t pass) override;
  bool aborted() const override { return model_.aborted(); }
  bool launches() const override { return model_.draws() || beside_gpus_; }
  bool launches_together() const override { return recorder_ || eplb_; }
  void Launch(const ForwardBatch& batch) override;
  std::span<const int32_t> Collect() override;
  std::span<const int32_t> routed_experts() const override { return model_.routed_experts(); }
  int64_t routed_width() const override;
  void MoveRows(std::span<const SlotMove> moves) override { kv_.MoveRows(moves, model_.device()); }
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override;

 private:
  // A pass whose routing has not been counted yet.
  struct OpenPass {
    uint64_t number = 0;
    std::vector<int32_t> positions, sequence_rows;  // members of PassTokens
    std::vector<uint64_t> request_ids;
  };
  void BeginPass(const ForwardBatch& batch);
  // Counts the routing of all passes up to number `last`.
  void EndPasses(uint64_t last);
  // Discards the open pass with this number, so that its routing is not counted.
  void DropPass(uint64_t number);

  Model& model_;
  KvStorage& kv_;
  ExpertRecorder* const recorder_;  // or null
  EplbManager* const eplb_;         // or null
  const bool beside_gpus_;
  std::deque<OpenPass> open_;      // oldest first; empty without recorder and manager
  std::deque<uint64_t> launched_;  // numbers of the passes to collect
};

}  // namespace switchyard
