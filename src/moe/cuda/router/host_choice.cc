#include "moe/cuda/router/host_choice.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard::cuda {

HostChoice::HostChoice(ReplicaChooser& chooser, int64_t max_tokens, int top_k, cudaStream_t stream)
    : chooser_(chooser),
      top_k_(top_k),
      stream_(stream),
      host_(static_cast<size_t>(2 * max_tokens * top_k) * sizeof(int32_t)),
      physical_(host_.bytes() / 2) {}

void HostChoice::Begin(uint64_t pass, int micro_batch) {
  auto call = std::make_unique<Call>(
      Call{.owner = this, .round = {.pass = pass, .micro_batch = micro_batch}, .once = true});
  Check(cudaLaunchHostFunc(stream_, SetPass, call.release()), "begin of the choice of replicas");
}

void HostChoice::SetPass(void* argument) {
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  call->owner->pass_ = call->round.pass;
  call->owner->micro_batch_ = call->round.micro_batch;
}

HostChoice::Call* HostChoice::MakeCall(const RoundToChoose& round, int64_t tokens) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream_, &status), "reading the state of a stream");
  const bool once = status == cudaStreamCaptureStatusNone;
  auto call =
      std::make_unique<Call>(Call{.owner = this, .round = round, .tokens = tokens, .once = once});
  if (once) return call.release();
  return recorded_.emplace_back(std::move(call)).get();
}

const int32_t* HostChoice::Choose(int layer, int64_t first_token, const int32_t* logical,
                                  int64_t tokens) {
  const size_t bytes = static_cast<size_t>(tokens * top_k_) * sizeof(int32_t);
  CHECK_LE(bytes, physical_.bytes());
  if (tokens == 0) return physical_.as<int32_t>();
  int32_t* const to = host_.as<int32_t>();
  const int32_t* const from = to + physical_.bytes() / sizeof(int32_t);
  Check(cudaMemcpyAsync(to, logical, bytes, cudaMemcpyDeviceToHost, stream_),
        "copy of logical experts");
  Check(cudaLaunchHostFunc(stream_, Run,
                           MakeCall({.layer = layer, .first_token = first_token}, tokens)),
        "choice of replicas");
  Check(cudaMemcpyAsync(physical_.data(), from, bytes, cudaMemcpyHostToDevice, stream_),
        "copy of physical experts");
  return physical_.as<int32_t>();
}

void HostChoice::Run(void* argument) {
  auto* const call = static_cast<Call*>(argument);
  HostChoice& self = *call->owner;
  const int64_t slots = call->tokens * self.top_k_;
  const int32_t* const logical = self.host_.as<int32_t>();
  self.logical_.tokens = call->tokens;
  self.logical_.k = self.top_k_;
  self.logical_.ids.assign(logical, logical + slots);
  RoundToChoose round = call->round;
  round.pass = self.pass_;
  round.micro_batch = self.micro_batch_;
  self.chooser_.Choose(round, self.logical_, &self.chosen_);
  std::ranges::copy(self.chosen_.ids,
                    self.host_.as<int32_t>() + self.physical_.bytes() / sizeof(int32_t));
  if (call->once) delete call;
}

}  // namespace switchyard::cuda
