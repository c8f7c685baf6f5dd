#include "core/cuda/driver.h"

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {
namespace {

constexpr unsigned kSinceVersion = 10020;  // CUDA 10.2

template <typename Function>
void Find(const char* name, Function* found, unsigned version = kSinceVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &result);
  if (error != cudaSuccess) cudaGetLastError();
  const bool exists = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  *found = exists ? reinterpret_cast<Function>(function) : nullptr;
}

MemoryDriver FindDriver() {
  MemoryDriver driver;
  Find("cuDeviceGet", &driver.device, 2000);
  Find("cuDeviceGetAttribute", &driver.attribute, 2000);
  Find("cuMemGetAllocationGranularity", &driver.granularity);
  Find("cuMemAddressReserve", &driver.reserve);
  Find("cuMemAddressFree", &driver.free_range);
  Find("cuMemCreate", &driver.create);
  Find("cuMemRelease", &driver.release);
  Find("cuMemMap", &driver.map);
  Find("cuMemUnmap", &driver.unmap);
  Find("cuMemSetAccess", &driver.set_access);
  Find("cuMemExportToShareableHandle", &driver.export_handle);
  Find("cuMemImportFromShareableHandle", &driver.import_handle);
  return driver;
}

}  // namespace

const MemoryDriver& MemoryDriver::Get() {
  static const MemoryDriver driver = FindDriver();
  return driver;
}

int CurrentDevice() {
  int device = 0;
  Check(cudaGetDevice(&device), "reading the current GPU");
  return device;
}

bool HasAttribute(CUdevice_attribute attribute) {
  const MemoryDriver& driver = MemoryDriver::Get();
  if (!driver.complete()) return false;
  CUdevice device = 0;
  int supported = 0;
  return driver.device(&device, CurrentDevice()) == CUDA_SUCCESS &&
         driver.attribute(&supported, attribute, device) == CUDA_SUCCESS && supported != 0;
}

CUmemAllocationProp MemoryOn(int device, bool shared) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (shared) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

void AllowAccess(CUdeviceptr at, size_t bytes, int device) {
  CUmemAccessDesc access = {};
  access.location = MemoryOn(device).location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CheckDriver(MemoryDriver::Get().set_access(at, bytes, &access, 1), "access to GPU memory");
}

void CheckDriver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw Resource("{}: error {} of the CUDA driver", what, static_cast<int>(result));
}

void ThrowOutOfMemory(size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  throw Resource("out of GPU memory: requested {:.2f} GiB, {:.2f} of {:.2f} GiB free",
                 bytes / 1073741824.0, free / 1073741824.0, total / 1073741824.0);
}

}  // namespace switchyard::cuda
