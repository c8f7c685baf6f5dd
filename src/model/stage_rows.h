// Hidden rows between the pipeline stages of a model.
#pragma once

#include <span>

namespace switchyard {

// The rows of a batch, [T, residual_width] float32 in the memory of the rank's device, from the
// previous stage and to the next one. Owned by the rank's model, used by the rank's thread only.
// The host waits for the other stage until it has sent, or enqueued, the matching message; its
// errors are those of MessageLane. A GPU enqueues the transfer like its ops. Never called while a
// pass is captured.
class StageRows {
 public:
  virtual ~StageRows() = default;
  virtual void Receive(std::span<float> rows) = 0;
  virtual void Send(std::span<const float> rows) = 0;
};

}  // namespace switchyard
