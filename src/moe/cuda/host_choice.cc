#include "moe/cuda/host_choice.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard::cuda {

HostChoice::HostChoice(ReplicaChooser& chooser, int64_t max_tokens, int top_k)
    : chooser_(chooser),
      top_k_(top_k),
      host_(static_cast<size_t>(2 * max_tokens * top_k) * sizeof(int32_t)),
      physical_(host_.bytes() / 2) {}

HostChoice::Call* HostChoice::MakeCall(int layer, int64_t tokens, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream, &status), "reading the state of a stream");
  const bool once = status == cudaStreamCaptureStatusNone;
  auto call =
      std::make_unique<Call>(Call{.owner = this, .layer = layer, .tokens = tokens, .once = once});
  if (once) return call.release();
  return recorded_.emplace_back(std::move(call)).get();
}

const int32_t* HostChoice::Choose(int layer, const int32_t* logical, int64_t tokens,
                                  cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(tokens * top_k_) * sizeof(int32_t);
  CHECK_LE(bytes, physical_.bytes());
  if (tokens == 0) return physical_.as<int32_t>();
  int32_t* const to = host_.as<int32_t>();
  const int32_t* const from = to + physical_.bytes() / sizeof(int32_t);
  Check(cudaMemcpyAsync(to, logical, bytes, cudaMemcpyDeviceToHost, stream),
        "copy of logical experts");
  Check(cudaLaunchHostFunc(stream, Run, MakeCall(layer, tokens, stream)), "choice of replicas");
  Check(cudaMemcpyAsync(physical_.data(), from, bytes, cudaMemcpyHostToDevice, stream),
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
  self.chooser_.Choose(call->layer, self.logical_, &self.chosen_);
  std::ranges::copy(self.chosen_.ids,
                    self.host_.as<int32_t>() + self.physical_.bytes() / sizeof(int32_t));
  if (call->once) delete call;
}

}  // namespace switchyard::cuda
