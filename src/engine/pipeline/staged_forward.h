// Forward passes of a pipeline stage.
#pragma once

#include <string>
#include <vector>

#include "comm/device/communicator.h"
#include "engine/pipeline/stage_links.h"
#include "engine/rank_engine.h"

namespace switchyard {

// Runs the passes of this stage's layers, and carries the results of the last stage to the others.
// So the engines of all stages have the same tokens. Borrows all arguments. Used by the rank's
// thread only.
class StagedForward : public ForwardFunction {
 public:
  // `plan`: of the whole model.
  StagedForward(ForwardFunction& model, RankComm& comm, StageLinks& links,
                const EngineConfig& config, const EnginePlan& plan);

  // The hidden rows carry the fingerprint of their batch. If it differs from that of this stage, a
  // bug has made the schedulers diverge: Error kPeer.
  std::span<const float> Forward(const ForwardBatch& batch) override;
  int64_t vocab_size() const override { return model_.vocab_size(); }
  Pooling pooling() const override { return model_.pooling(); }
  int64_t output_width() const override { return model_.output_width(); }
  // Passes are launched on GPUs. The last stage samples tokens on its device; the others have none.
  bool draws() const override { return has_logits() && model_.draws(); }
  std::span<const int32_t> drawn() const override { return model_.drawn(); }
  bool launches() const override { return model_.launches(); }
  bool launches_together() const override { return model_.launches_together(); }
  void Launch(const ForwardBatch& batch) override;
  std::span<const int32_t> Collect() override { return model_.Collect(); }
  int passes_in_flight() const override { return passes_; }
  bool has_logits() const override { return comm_.mesh.last_stage(); }
  void SendResults(const std::string& bytes) override { links_.SendResults(bytes); }
  std::string ReceiveResults() override { return links_.ReceiveResults(); }
  void PassOnResults(const std::string& bytes) override { links_.PassOnResults(bytes); }
  bool sends_values() const override { return comm_.mesh.attn_tp_rank() == 0; }
  // Of the layers of this stage and those before, [T, layers, top_k]. Only on the ranks that send
  // values; empty on the others.
  std::span<const int32_t> routed_experts() const override { return routed_; }
  int64_t routed_width() const override { return routed_all_; }  // of all stages
  // Collective of the attention groups with the same requests, on all stages.
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override;

 private:
  // Sets the fingerprint of the messages of a pass.
  void SetTag(const ForwardBatch& batch);
  // Appends the experts of this stage's layers to those of the stages before, and sends them on.
  void JoinRouted(int64_t tokens);

  ForwardFunction& model_;
  RankComm& comm_;
  StageLinks& links_;
  const int passes_;
  const int32_t page_size_;
  // Elements of a row of chosen experts: of the stages before, of this one, and of all; 0 without
  // experts.
  int64_t routed_before_ = 0, routed_own_ = 0, routed_all_ = 0;
  std::vector<int32_t> routed_;
};

}  // namespace switchyard
