// Functions of the CUDA driver, looked up through the runtime, so that the program does not link
// libcuda (as in kernels/cuda/device/launch.cc).
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

namespace switchyard::cuda {

// Functions of the driver's virtual memory management; null if the driver does not have them.
// Internal to core/cuda.
struct MemoryDriver {
  PFN_cuDeviceGet_v2000 device;
  PFN_cuDeviceGetAttribute_v2000 attribute;
  PFN_cuMemGetAllocationGranularity_v10020 granularity;
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free_range;
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuMemExportToShareableHandle_v10020 export_handle;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle;

  bool complete() const {
    return device && attribute && granularity && reserve && free_range && create && release &&
           map && unmap && set_access;
  }
  bool shares() const { return complete() && export_handle && import_handle; }

  static const MemoryDriver& Get();
};

int CurrentDevice();
// Whether the current device has the attribute. False if the driver is too old.
bool HasAttribute(CUdevice_attribute attribute);
// Memory on a device. `shared`: with file descriptors.
CUmemAllocationProp MemoryOn(int device, bool shared = false);
// Lets the device read and write mapped memory.
void AllowAccess(CUdeviceptr at, size_t bytes, int device);
// Error kResource with the number of the driver's error.
void CheckDriver(CUresult result, const char* what);
// Error kResource: too little memory for `bytes` bytes on the current device.
[[noreturn]] void ThrowOutOfMemory(size_t bytes);

}  // namespace switchyard::cuda
