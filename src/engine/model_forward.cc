#include "engine/model_forward.h"

#include <fmt/format.h>

#include "moe/router_fault.h"

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

std::vector<std::string> ModelForward::RouterFaults(const ForwardBatch& batch) {
  Communicator& group = model_.attention_group();
  const size_t sequences = batch.sequences.size();
  const std::vector<int32_t> mine = model_.RouterFaults(batch, kv_);
  std::vector<int32_t> all(sequences * group.size());
  group.AllGather(mine.data(), all.data(), sequences * sizeof(int32_t));
  std::vector<std::string> words(sequences);
  for (size_t i = 0; i < sequences; ++i) {
    int32_t first = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      const int32_t fault = all[rank * sequences + i];
      if (fault != 0 && (first == 0 || fault < first)) first = fault;
    }
    if (first != 0)
      words[i] = fmt::format(
          "the router of layer {} gave expert {} a score that is not finite (NaN or infinity)",
          LayerOfFault(first), ExpertOfFault(first));
  }
  return words;
}

void ModelForward::EndPass(const ForwardBatch& batch) {
  sequence_rows_.clear();
  for (const auto& sequence : batch.sequences) sequence_rows_.push_back(sequence.rows);
  recorder_->EndPass({batch.positions, sequence_rows_, batch.request_ids});
}

}  // namespace switchyard
