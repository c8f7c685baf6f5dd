// Device memory whose physical memory can be freed while its addresses stay reserved.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace switchyard::cuda {

// A range of addresses on the device that is current at construction, with physical memory behind
// it while it is mapped. So pointers in captured graphs stay valid over a release of the memory.
// Uses the driver's virtual memory management (cuMemMap). Every call needs the same current device.
// Used by one thread at a time. Other GPUs cannot access the memory.
class MappedMemory {
 public:
  // Whether the current device supports it.
  static bool Supported();

  // Reserves the range and maps zeroed memory of at least `bytes` bytes, which is not 0. Errors of
  // Map; Error kResource if the driver has no virtual memory management.
  explicit MappedMemory(size_t bytes);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const { return data_; }  // aligned to 2 MiB
  bool mapped() const { return mapped_; }
  // Maps zeroed memory, unless memory is mapped. Error kResource reports the requested and the free
  // bytes; the range then stays unmapped.
  void Map();
  // Waits for all work of the device, then frees the physical memory, if it is mapped.
  void Unmap();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;  // a multiple of the driver's granularity
  bool mapped_ = false;
};

}  // namespace switchyard::cuda
