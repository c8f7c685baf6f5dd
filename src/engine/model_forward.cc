#include "engine/model_forward.h"

#include <fmt/format.h>

#include "core/check.h"
#include "moe/router/router_fault.h"

namespace switchyard {

void ModelForward::BeginPass(const ForwardBatch& batch) {
  if (eplb_) eplb_->BeginPass();
  if (recorder_) recorder_->BeginPass(batch.pass, batch.num_tokens());
  if (!eplb_ && !recorder_) return;
  OpenPass& pass = open_.emplace_back(OpenPass{.number = batch.pass});
  if (!recorder_) return;
  pass.positions = batch.positions;
  pass.request_ids = batch.request_ids;
  for (const auto& sequence : batch.sequences) pass.sequence_rows.push_back(sequence.rows);
}

void ModelForward::EndPasses(uint64_t last) {
  for (; !open_.empty() && open_.front().number <= last; open_.pop_front()) {
    const OpenPass& pass = open_.front();
    if (recorder_)
      recorder_->EndPass(pass.number, {pass.positions, pass.sequence_rows, pass.request_ids});
    if (eplb_) eplb_->EndPass(pass.number);
  }
}

void ModelForward::DropPass(uint64_t number) {
  if (recorder_) recorder_->AbortPass(number);
  if (eplb_) eplb_->AbortPass(number);
  std::erase_if(open_, [&](const OpenPass& pass) { return pass.number == number; });
}

// When Forward returns, all passes that were launched before it have ended too.
std::span<const float> ModelForward::Forward(const ForwardBatch& batch) {
  BeginPass(batch);
  const std::span<const float> logits = model_.Forward(batch, kv_);
  // Other passes copy logits or tokens to the host, and so wait for the device.
  if (batch.logit_rows.empty()) model_.device().Synchronize();
  if (model_.aborted()) DropPass(batch.pass);
  EndPasses(batch.pass);
  return logits;
}

void ModelForward::Launch(const ForwardBatch& batch) {
  BeginPass(batch);
  if (beside_gpus_) {
    CHECK(batch.draws.empty());
    model_.Forward(batch, kv_);
  } else {
    model_.Launch(batch, kv_);
  }
  launched_.push_back(batch.pass);
}

std::span<const int32_t> ModelForward::Collect() {
  const std::span<const int32_t> tokens =
      beside_gpus_ ? std::span<const int32_t>() : model_.Collect();
  EndPasses(launched_.front());
  launched_.pop_front();
  return tokens;
}

void ModelForward::AbortPass(uint64_t pass) {
  if (launched_.empty() || launched_.front() != pass) return model_.AbortPass(pass);
  model_.Collect();
  launched_.pop_front();
  DropPass(pass);
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
          LayerOfFault(first) + model_.config().first_layer, ExpertOfFault(first));
  }
  return words;
}

}  // namespace switchyard
