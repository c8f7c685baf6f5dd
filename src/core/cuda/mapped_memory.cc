#include "core/cuda/mapped_memory.h"

#include "core/cuda/driver.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {
namespace {

CUdeviceptr AddressOf(void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

bool MappedMemory::Supported() {
  return HasAttribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
}

MappedMemory::MappedMemory(size_t bytes) {
  const MemoryDriver& driver = MemoryDriver::Get();
  if (!driver.complete())
    throw Resource("the CUDA driver has no virtual memory management: needs driver 440 or newer");
  const CUmemAllocationProp properties = MemoryOn(CurrentDevice());
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
  const MemoryDriver& driver = MemoryDriver::Get();
  if (mapped_) {
    cudaDeviceSynchronize();  // as cudaFree, which waits too
    driver.unmap(AddressOf(data_), bytes_);
  }
  driver.free_range(AddressOf(data_), bytes_);
}

void MappedMemory::Map() {
  if (mapped_) return;
  const MemoryDriver& driver = MemoryDriver::Get();
  const int device = CurrentDevice();
  const CUmemAllocationProp properties = MemoryOn(device);
  CUmemGenericAllocationHandle memory = 0;
  if (driver.create(&memory, bytes_, &properties, /*flags=*/0) != CUDA_SUCCESS)
    ThrowOutOfMemory(bytes_);
  const CUresult result = driver.map(AddressOf(data_), bytes_, /*offset=*/0, memory, /*flags=*/0);
  driver.release(memory);  // the mapping keeps the memory
  CheckDriver(result, "mapping of GPU memory");
  mapped_ = true;
  try {
    AllowAccess(AddressOf(data_), bytes_, device);
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
  CheckDriver(MemoryDriver::Get().unmap(AddressOf(data_), bytes_), "unmapping of GPU memory");
  mapped_ = false;
}

}  // namespace switchyard::cuda
