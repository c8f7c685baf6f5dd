#include "engine/pipeline/staged_forward.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include "engine/scheduler/batch.h"

namespace switchyard {

StagedForward::StagedForward(ForwardFunction& model, RankComm& comm, StageLinks& links,
                             const EngineConfig& config, const EnginePlan& plan)
    : model_(model),
      comm_(comm),
      links_(links),
      passes_(PassesInFlight(config)),
      page_size_(config.page_size) {
  if (!plan.model.has_moe()) return;
  const schedule::LayerRange& stage = plan.stages[comm.mesh.pp_rank()];
  const int64_t top_k = plan.model.moe->router.top_k;
  routed_before_ = stage.begin * top_k;
  routed_own_ = stage.size() * top_k;
  routed_all_ = plan.model.routed_width();
}

void StagedForward::SetTag(const ForwardBatch& batch) {
  const uint64_t tag = Fingerprint(batch, page_size_);
  links_.rows().SetTag(tag);
  links_.routed().SetTag(tag);
}

void StagedForward::Launch(const ForwardBatch& batch) {
  SetTag(batch);
  routed_.clear();  // a launched batch requests no experts
  model_.Launch(batch);
}

std::span<const float> StagedForward::Forward(const ForwardBatch& batch) {
  SetTag(batch);
  const std::span<const float> logits = model_.Forward(batch);
  routed_.clear();
  if (batch.routed_experts && sends_values()) JoinRouted(batch.num_tokens());
  return logits;
}

void StagedForward::JoinRouted(int64_t tokens) {
  std::vector<int32_t> before(static_cast<size_t>(tokens * routed_before_));
  if (!comm_.mesh.first_stage()) links_.routed().Receive(std::as_writable_bytes(std::span(before)));
  const std::span<const int32_t> own = model_.routed_experts();  // empty: no layer has experts
  const int64_t width = routed_before_ + routed_own_;
  routed_.assign(static_cast<size_t>(tokens * width), -1);
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = routed_.begin() + t * width;
    std::copy_n(before.begin() + t * routed_before_, routed_before_, row);
    if (!own.empty()) std::copy_n(own.begin() + t * routed_own_, routed_own_, row + routed_before_);
  }
  if (!comm_.mesh.last_stage()) links_.routed().Send(std::as_bytes(std::span(routed_)));
}

// Gathers the texts of all stages. For each sequence, the first stage with a fault counts.
std::vector<std::string> StagedForward::RouterFaults(const ForwardBatch& batch) {
  std::vector<std::string> faults = model_.RouterFaults(batch);
  faults.resize(batch.sequences.size());
  std::string mine;
  for (const std::string& fault : faults) mine += fault + '\n';
  Communicator& stages = *comm_.pp;
  const size_t size = mine.size();
  std::vector<size_t> sizes(stages.size());
  stages.AllGather(&size, sizes.data(), sizeof size);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), '\0');
  stages.AllGatherV(mine.data(), all.data(), sizes);
  std::string_view rest = all;
  for (int stage = 0; stage < stages.size(); ++stage) {
    for (std::string& fault : faults) {
      const size_t end = rest.find('\n');
      if (stage == 0) fault.clear();
      if (fault.empty()) fault = rest.substr(0, end);
      rest.remove_prefix(end + 1);
    }
  }
  return faults;
}

}  // namespace switchyard
