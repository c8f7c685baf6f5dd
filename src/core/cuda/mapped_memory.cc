#include "core/cuda/mapped_memory.h"

#include <cuda.h>
#include <cudaTypedefs.h>

#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {
namespace {

constexpr unsigned kSinceVersion = 10020;  // CUDA 10.2

// Looked up through the runtime, so that the program does not link libcuda (as in
// kernels/cuda/device/launch.cc). Null if the driver does not have the function.
template <typename Function>
Function Find(const char* name, unsigned version = kSinceVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (error != cudaSuccess) cudaGetLastError();
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function>(function);
}

struct Driver {
  PFN_cuDeviceGet_v2000 device = Find<PFN_cuDeviceGet_v2000>("cuDeviceGet", 2000);
  PFN_cuDeviceGetAttribute_v2000 attribute =
      Find<PFN_cuDeviceGetAttribute_v2000>("cuDeviceGetAttribute", 2000);
  PFN_cuMemGetAllocationGranularity_v10020 granularity =
      Find<PFN_cuMemGetAllocationGranularity_v10020>("cuMemGetAllocationGranularity");
  PFN_cuMemAddressReserve_v10020 reserve =
      Find<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve");
  PFN_cuMemAddressFree_v10020 free_range = Find<PFN_cuMemAddressFree_v10020>("cuMemAddressFree");
  PFN_cuMemCreate_v10020 create = Find<PFN_cuMemCreate_v10020>("cuMemCreate");
  PFN_cuMemRelease_v10020 release = Find<PFN_cuMemRelease_v10020>("cuMemRelease");
  PFN_cuMemMap_v10020 map = Find<PFN_cuMemMap_v10020>("cuMemMap");
  PFN_cuMemUnmap_v10020 unmap = Find<PFN_cuMemUnmap_v10020>("cuMemUnmap");
  PFN_cuMemSetAccess_v10020 set_access = Find<PFN_cuMemSetAccess_v10020>("cuMemSetAccess");

  bool complete() const {
    return device && attribute && granularity && reserve && free_range && create && release &&
           map && unmap && set_access;
  }
};

const Driver& TheDriver() {
  static const Driver driver;
  return driver;
}

int CurrentDevice() {
  int device = 0;
  Check(cudaGetDevice(&device), "reading the current GPU");
  return device;
}

CUmemAllocationProp PropertiesOn(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

void CheckDriver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw Resource("{}: error {} of the CUDA driver", what, static_cast<int>(result));
}

CUdeviceptr AddressOf(void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

bool MappedMemory::Supported() {
  const Driver& driver = TheDriver();
  if (!driver.complete()) return false;
  CUdevice device = 0;
  int supported = 0;
  return driver.device(&device, CurrentDevice()) == CUDA_SUCCESS &&
         driver.attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                          device) == CUDA_SUCCESS &&
         supported != 0;
}

MappedMemory::MappedMemory(size_t bytes) {
  const Driver& driver = TheDriver();
  if (!driver.complete())
    throw Resource("the CUDA driver has no virtual memory management: needs driver 440 or newer");
  const CUmemAllocationProp properties = PropertiesOn(CurrentDevice());
  size_t unit = 0;
  CheckDriver(driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
              "granularity of GPU memory");
  bytes_ = (bytes + unit - 1) / unit * unit;
  CUdeviceptr range = 0;
  CheckDriver(driver.reserve(&range, bytes_, /*alignment=*/0, /*addr=*/0, /*flags=*/0),
              "reservation of GPU addresses");
  data_ = reinterpret_cast<void*>(range);
  try {
    Map();
  } catch (...) {
    driver.free_range(range, bytes_);
    throw;
  }
}

MappedMemory::~MappedMemory() {
  const Driver& driver = TheDriver();
  if (mapped_) {
    cudaDeviceSynchronize();  // as cudaFree, which waits too
    driver.unmap(AddressOf(data_), bytes_);
  }
  driver.free_range(AddressOf(data_), bytes_);
}

void MappedMemory::Map() {
  if (mapped_) return;
  const Driver& driver = TheDriver();
  const int device = CurrentDevice();
  const CUmemAllocationProp properties = PropertiesOn(device);
  CUmemGenericAllocationHandle memory = 0;
  if (driver.create(&memory, bytes_, &properties, /*flags=*/0) != CUDA_SUCCESS) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Resource("out of GPU memory: requested {:.2f} GiB, {:.2f} of {:.2f} GiB free",
                   bytes_ / 1073741824.0, free / 1073741824.0, total / 1073741824.0);
  }
  const CUresult result = driver.map(AddressOf(data_), bytes_, /*offset=*/0, memory, /*flags=*/0);
  driver.release(memory);  // the mapping keeps the memory
  CheckDriver(result, "mapping of GPU memory");
  mapped_ = true;
  try {
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CheckDriver(driver.set_access(AddressOf(data_), bytes_, &access, 1), "access to GPU memory");
    Check(cudaMemset(data_, 0, bytes_), "zeroing GPU memory");
    Check(cudaDeviceSynchronize(), "zeroing GPU memory");  // as in DeviceMemory
  } catch (...) {
    driver.unmap(AddressOf(data_), bytes_);
    mapped_ = false;
    throw;
  }
}

void MappedMemory::Unmap() {
  if (!mapped_) return;
  Check(cudaDeviceSynchronize(), "GPU execution");
  CheckDriver(TheDriver().unmap(AddressOf(data_), bytes_), "unmapping of GPU memory");
  mapped_ = false;
}

}  // namespace switchyard::cuda
