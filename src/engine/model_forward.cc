#include "engine/model_forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "moe/layer.h"

namespace switchyard {

std::span<const float> ModelForward::Forward(const ForwardBatch& batch) {
  if (eplb_) eplb_->BeginPass();
  if (recorder_) recorder_->BeginPass(batch.num_tokens());
  const std::span<const float> logits = model_.Forward(batch, kv_);
  if (recorder_) EndPass(batch);
  if (eplb_) eplb_->EndPass();
  NoteFaults(batch);
  return logits;
}

int64_t ModelForward::routed_width() const {
  const ModelConfig& config = model_.config();
  return config.has_moe() ? config.num_layers() * config.moe->router.top_k : 0;
}

void ModelForward::NoteFaults(const ForwardBatch& batch) {
  constexpr size_t kMaxKept = 4096;  // bounds the entries that aborted requests leave
  const std::span<const int32_t> faults = model_.router_faults();
  if (std::ranges::all_of(faults, [](int32_t fault) { return fault < 0; })) return;
  if (faults_.size() > kMaxKept) faults_.clear();
  for (size_t i = 0; i < batch.request_ids.size(); ++i) {
    const auto& sequence = batch.sequences[i];
    for (const int32_t fault : faults.subspan(sequence.row_begin, sequence.rows))
      if (fault >= 0) faults_.try_emplace(batch.request_ids[i], fault);
  }
}

std::vector<std::string> ModelForward::RouterFaults(const ForwardBatch& batch) {
  Communicator& group = model_.attention_group();
  const size_t sequences = batch.request_ids.size();
  std::vector<int32_t> mine(sequences, -1), all(sequences * group.size());
  for (size_t i = 0; i < sequences; ++i) {
    if (const auto it = faults_.find(batch.request_ids[i]); it != faults_.end())
      mine[i] = it->second;
    faults_.erase(batch.request_ids[i]);
  }
  group.AllGather(mine.data(), all.data(), sequences * sizeof(int32_t));
  std::vector<std::string> words(sequences);
  for (size_t i = 0; i < sequences; ++i) {
    int32_t first = -1;
    for (int rank = 0; rank < group.size(); ++rank) {
      const int32_t fault = all[rank * sequences + i];
      if (fault >= 0 && (first < 0 || fault < first)) first = fault;
    }
    if (first >= 0)
      words[i] = fmt::format(
          "the router of layer {} gave expert {} a score that is not finite (NaN or infinity)",
          first / kFaultLayer, first % kFaultLayer);
  }
  return words;
}

void ModelForward::EndPass(const ForwardBatch& batch) {
  sequence_rows_.clear();
  for (const auto& sequence : batch.sequences) sequence_rows_.push_back(sequence.rows);
  recorder_->EndPass({batch.positions, sequence_rows_, batch.request_ids});
}

}  // namespace switchyard
