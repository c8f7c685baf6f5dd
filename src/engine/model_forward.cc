#include "engine/model_forward.h"

namespace switchyard {

std::span<const float> ModelForward::Forward(const ForwardBatch& batch) {
  if (eplb_) eplb_->BeginPass();
  if (recorder_) recorder_->BeginPass(batch.num_tokens());
  const std::span<const float> logits = model_.Forward(batch, kv_);
  if (recorder_) EndPass(batch);
  if (eplb_) eplb_->EndPass();
  return logits;
}

int64_t ModelForward::routed_width() const {
  const ModelConfig& config = model_.config();
  return config.has_moe() ? config.num_layers() * config.moe->router.top_k : 0;
}

void ModelForward::EndPass(const ForwardBatch& batch) {
  sequence_rows_.clear();
  for (const auto& sequence : batch.sequences) sequence_rows_.push_back(sequence.rows);
  recorder_->EndPass({batch.positions, sequence_rows_, batch.request_ids});
}

}  // namespace switchyard
