#include "kernels/gpus.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "core/cuda/device_chunks.h"
#include "core/cuda/runtime.h"
#include "core/log.h"

namespace switchyard {
namespace {

struct Record {
  char name[64];
  int64_t total, free;
  bool hopper;
};

// Runs in the child process: writes one record per GPU. Must not throw or allocate much.
void WriteGpuRecords(int fd) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return;
  for (int i = 0; i < count; ++i) {
    Record record{};
    cudaDeviceProp properties;
    size_t free = 0, total = 0;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess || cudaSetDevice(i) != cudaSuccess ||
        cudaMemGetInfo(&free, &total) != cudaSuccess)
      return;
    std::snprintf(record.name, sizeof record.name, "%.63s", properties.name);
    record.hopper = properties.major == 9 && properties.minor == 0;
    record.total = static_cast<int64_t>(total);
    record.free = static_cast<int64_t>(free);
    if (write(fd, &record, sizeof record) != sizeof record) return;
  }
}

std::vector<GpuInfo> QueryGpus() {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    WriteGpuRecords(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  std::vector<GpuInfo> gpus;
  Record record;
  while (child > 0 && read(ends[0], &record, sizeof record) == sizeof record)
    gpus.push_back({record.name, record.total, record.free, record.hopper});
  close(ends[0]);
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  if (child < 0 || status != 0)
    LOG_WARNING("cannot query the GPUs of this machine (child status {})", status);
  return gpus;
}

}  // namespace

const std::vector<GpuInfo>& FindGpus() {
  static const std::vector<GpuInfo> kGpus = QueryGpus();
  return kGpus;
}

int64_t FreeGpuBytes(int index) {
  cuda::UseDevice(index);
  size_t free = 0, total = 0;
  cuda::Check(cudaMemGetInfo(&free, &total), "reading the free memory of a GPU");
  return static_cast<int64_t>(free);
}

void StartGpu(int index) {
  cuda::UseDevice(index);
  cuda::Check(cudaFree(nullptr), "start of CUDA");
}

void LeaveGpu(int index) {
  cuda::UseDevice(index);
  cuda::Check(cudaDeviceReset(), "reset of this process's use of a GPU");
}

std::unique_ptr<DeviceChunks> MakeDeviceChunks(int index) {
  cuda::UseDevice(index);
  return cuda::MakeDeviceChunks();
}

}  // namespace switchyard
