// Checks of what is trained on a device.
#pragma once

#include "model/config.h"
#include "train/batch.h"

namespace switchyard::train {

// Throws Error kInvalid, naming what is missing, for a model or losses that Model trains on CPUs
// and DeviceModel does not.
void CheckDeviceModel(const ModelConfig& config, const LossOptions& options);
// Throws Error kInvalid, naming the width, for a model whose linear layers cannot have FP8
// products: all widths must be multiples of kFp8Block, except that of latent attention's keys.
void CheckFp8Widths(const ModelConfig& config);

}  // namespace switchyard::train
