// Chunks of memory of a GPU that processes share.
#pragma once

#include <memory>

#include "core/device_store.h"

namespace switchyard::cuda {

// Chunks on the current device, which has to be current in every call. Null if the device or the
// driver cannot share memory by file descriptors, with the reason in the log.
std::unique_ptr<DeviceChunks> MakeDeviceChunks();

}  // namespace switchyard::cuda
