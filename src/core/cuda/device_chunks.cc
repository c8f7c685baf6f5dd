#include "core/cuda/device_chunks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/cuda/driver.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard::cuda {
namespace {

class GpuChunks final : public DeviceChunks {
 public:
  GpuChunks() : device_(CurrentDevice()) {
    const CUmemAllocationProp properties = MemoryOn(device_, /*shared=*/true);
    CheckDriver(driver_.granularity(&unit_, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "granularity of GPU memory");
    size_t free = 0, total = 0;
    Check(cudaMemGetInfo(&free, &total), "reading the memory of the GPU");
    capacity_ = total / unit_ * unit_;
    CheckDriver(driver_.reserve(&base_, capacity_, /*alignment=*/0, /*addr=*/0, /*flags=*/0),
                "reservation of GPU addresses");
  }
  ~GpuChunks() override {
    Unmap();
    driver_.free_range(base_, capacity_);
  }

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  size_t capacity() const override { return capacity_; }
  size_t unit() const override { return unit_; }

  int Create(size_t offset, size_t bytes) override {
    const CUmemAllocationProp properties = MemoryOn(device_, /*shared=*/true);
    CUmemGenericAllocationHandle memory = 0;
    if (driver_.create(&memory, bytes, &properties, /*flags=*/0) != CUDA_SUCCESS)
      ThrowOutOfMemory(bytes);
    int fd = -1;
    const CUresult exported =
        driver_.export_handle(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, /*flags=*/0);
    try {
      Map(memory, offset, bytes);
      CheckDriver(exported, "export of GPU memory");
      Zero(offset, bytes);
    } catch (...) {
      if (exported == CUDA_SUCCESS) close(fd);
      throw;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
  }

  void Import(int fd, size_t offset, size_t bytes) override {
    CUmemGenericAllocationHandle memory = 0;
    CheckDriver(driver_.import_handle(&memory, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "import of GPU memory");
    Map(memory, offset, bytes);
  }

  void Zero(size_t offset, size_t bytes) override {
    Check(cudaMemset(base() + offset, 0, bytes), "zeroing GPU memory");
    Check(cudaDeviceSynchronize(), "zeroing GPU memory");  // as in DeviceMemory
  }

  void Unmap() override {
    cudaDeviceSynchronize();  // as cudaFree, which waits too
    for (const auto& [offset, bytes] : std::exchange(mapped_, {}))
      driver_.unmap(base_ + offset, bytes);
  }

  bool Works() override {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) return true;
    cudaGetLastError();
    LOG_WARNING("this process cannot use the GPU any more: {}", cudaGetErrorString(error));
    return false;
  }

 private:
  // Takes ownership of `memory`.
  void Map(CUmemGenericAllocationHandle memory, size_t offset, size_t bytes) {
    const CUresult result = driver_.map(base_ + offset, bytes, /*offset=*/0, memory, /*flags=*/0);
    driver_.release(memory);  // the mapping keeps the memory
    CheckDriver(result, "mapping of GPU memory");
    mapped_.emplace_back(offset, bytes);
    AllowAccess(base_ + offset, bytes, device_);
  }

  const MemoryDriver& driver_ = MemoryDriver::Get();
  const int device_;
  CUdeviceptr base_ = 0;
  size_t capacity_ = 0, unit_ = 0;
  std::vector<std::pair<size_t, size_t>> mapped_;  // offset and bytes of each chunk
};

}  // namespace

std::unique_ptr<DeviceChunks> MakeDeviceChunks() {
  const char* missing = nullptr;
  if (!MemoryDriver::Get().shares()) {
    missing = "the driver is too old";
  } else if (!HasAttribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    missing = "the GPU does not share memory by file descriptors";
  }
  if (missing) {
    LOG_WARNING("weights in GPU memory end with the process of a rank: {}", missing);
    return nullptr;
  }
  return std::make_unique<GpuChunks>();
}

}  // namespace switchyard::cuda
