// The update of parameters that are in the memory of a device.
#pragma once

#include "train/optimizer/adamw.h"

namespace switchyard::train {

// What the training loop does with gradients and moments that are not in the host's memory, instead
// of NormOfGradients and AdamW::Step. The host's AdamW counts the steps, and its moments are those
// of the checkpoints. Used by the rank's thread only.
class DeviceUpdate {
 public:
  virtual ~DeviceUpdate() = default;

  // Copies values and moments from the host, after a checkpoint was loaded, or to it, before one is
  // written. Null: no moments. Waits for the device.
  virtual void FromHost(AdamW* moments) = 0;
  virtual void ToHost(AdamW* moments) = 0;

  virtual GradientNorm Norm() = 0;  // waits for the device
  virtual void ClearGradients() = 0;
  // One step of AdamW::Step with the options of `moments`, whose steps it counts. Values and
  // moments of the host are stale afterwards.
  virtual void Step(double learning_rate, double gradient_scale, AdamW* moments) = 0;
};

}  // namespace switchyard::train
