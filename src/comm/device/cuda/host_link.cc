#include "comm/device/cuda/host_link.h"

#include <fmt/format.h>

#include <cstdint>
#include <new>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard::cuda {
namespace {

constexpr size_t kPageBytes = 4096;

// A volatile view: a kernel writes the report.
const volatile WaitTimeoutReport& Read(const PinnedMemory& report) {
  return *report.as<WaitTimeoutReport>();
}

}  // namespace

HostLink::HostLink(SymmetricMemory& memory, std::chrono::milliseconds timeout)
    : memory_(memory), timeout_(timeout), report_(sizeof(WaitTimeoutReport)) {
  CHECK_LE(memory.world(), kMaxPeers);
  new (report_.as<void>()) WaitTimeoutReport;
  void* on_device = nullptr;
  Check(cudaHostGetDevicePointer(&on_device, report_.as<void>(), 0), "mapping the wait report");
  report_on_device_ = static_cast<WaitTimeoutReport*>(on_device);
  // The header of the arena has pages of its own.
  auto* word = reinterpret_cast<std::byte*>(const_cast<uint32_t*>(memory.abort_word()));
  aborted_ = reinterpret_cast<const uint32_t*>(Pin(word, sizeof(uint32_t)));
}

HostLink::~HostLink() {
  cudaDeviceSynchronize();
  for (void* range : pinned_)
    if (const cudaError_t error = cudaHostUnregister(range); error != cudaSuccess)
      LOG_DEBUG("rank {}: unpinning shared memory: {}", rank(), cudaGetErrorString(error));
  cudaGetLastError();
}

std::byte* HostLink::Pin(std::byte* begin, size_t bytes) {
  const size_t before = reinterpret_cast<uintptr_t>(begin) % kPageBytes;
  const size_t whole = (before + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::byte* const page = begin - before;
  const cudaError_t error =
      cudaHostRegister(page, whole, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Error(ErrorKind::kResource,
                fmt::format("cannot pin {} bytes of memory that the ranks of this host share, "
                            "which the GPU needs to reach experts on CPUs: {}",
                            whole, cudaGetErrorString(error)),
                "lower --chunked-prefill-size or --deepep-normal-long-seq-per-round-tokens, or "
                "raise the limit of locked memory");
  }
  pinned_.push_back(page);
  void* on_device = nullptr;
  Check(cudaHostGetDevicePointer(&on_device, page, 0), "mapping shared memory for the GPU");
  return static_cast<std::byte*>(on_device) + before;
}

PeerPointers HostLink::Allocate(size_t bytes, size_t used) {
  CHECK_LE(used, bytes);
  CHECK(!std::exchange(allocated_, true));  // two allocations could share a page
  const size_t offset = memory_.Allocate(bytes);
  PeerPointers pointers;
  for (int r = 0; r < memory_.world(); ++r) {
    CHECK(memory_.Mapped(r));
    pointers.at[r] = Pin(memory_.At(r, offset), used);
  }
  return pointers;
}

WaitLimit HostLink::wait_limit() const {
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(timeout_);
  return {.report = report_on_device_,
          .nanoseconds = static_cast<uint64_t>(nanoseconds.count()),
          .rank = rank()};
}

void HostLink::CheckTimeouts() const {
  memory_.CheckAborted();  // then kernels did not wait, and their results are undefined
  const volatile WaitTimeoutReport& report = Read(report_);
  if (report.failed == 0) return;
  throw Error(ErrorKind::kTimeout,
              fmt::format("rank {} waited {:g} s on its GPU for the experts of rank {}, on CPUs "
                          "(round {}, seen {})",
                          rank(), std::chrono::duration<double>(timeout_).count(),
                          static_cast<int>(report.peer), static_cast<uint32_t>(report.wanted),
                          static_cast<uint32_t>(report.seen)));
}

void HostLink::Wait(cudaEvent_t event) {
  PollEvent(event, [this] {
    memory_.Beat();
    memory_.CheckAborted();
  });
}

}  // namespace switchyard::cuda
