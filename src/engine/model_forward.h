// Runs forward passes of a rank's model, with EPLB and expert recording around them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/expert_services.h"
#include "engine/rank_engine.h"
#include "model/model.h"

namespace switchyard {

// One per rank, used by the rank's thread; borrows all arguments. With an EplbManager or a
// recorder, all ranks must run the same passes in the same order.
class ModelForward : public ForwardFunction {
 public:
  ModelForward(Model& model, KvStorage& kv, const ExpertServices& experts)
      : model_(model), kv_(kv), recorder_(experts.recorder.get()), eplb_(experts.manager.get()) {}

  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.config().vocab_size; }
  bool draws() const override { return model_.draws(); }
  std::span<const int32_t> drawn() const override { return model_.drawn(); }
  bool launches() const override { return model_.draws() && !recorder_ && !eplb_; }
  void Launch(const ForwardBatch& batch) override { model_.Launch(batch, kv_); }
  std::span<const int32_t> Collect() override { return model_.Collect(); }
  std::span<const int32_t> routed_experts() const override { return model_.routed_experts(); }
  int64_t routed_width() const override;
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override;

 private:
  void EndPass(const ForwardBatch& batch);

  Model& model_;
  KvStorage& kv_;
  ExpertRecorder* const recorder_;      // or null
  EplbManager* const eplb_;             // or null
  std::vector<int32_t> sequence_rows_;  // [sequences]
};

}  // namespace switchyard
