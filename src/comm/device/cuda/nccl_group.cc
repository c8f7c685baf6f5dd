#include "comm/device/cuda/nccl_group.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard::cuda {

NcclGroup::NcclGroup(const NcclLibrary& nccl, const NcclUniqueId& id, int rank, int size,
                     std::string name, cudaStream_t stream, std::chrono::milliseconds timeout)
    : nccl_(nccl),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      stream_(stream),
      timeout_(timeout) {
  NcclConfig config;
  try {
    Finish(nccl_.CommInitRankConfig(&handle_, size, id, rank, &config), "start");
    Connect();
  } catch (...) {
    if (handle_ != nullptr) nccl_.CommAbort(handle_);
    throw;
  }
}

NcclGroup::~NcclGroup() {
  // A rank that ends by an error waits for nobody.
  try {
    if (std::uncaught_exceptions() == exceptions_) {
      Finish(nccl_.CommFinalize(handle_), "end");
      nccl_.CommDestroy(handle_);
      return;
    }
  } catch (const std::exception& error) {
    LOG_DEBUG("{}", error.what());
  }
  nccl_.CommAbort(handle_);
}

// Until the operation is enqueued, which a thread of NCCL does; it may have to agree with others.
void NcclGroup::Finish(int result, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  while (result == kNcclInProgress) {
    const int asked = nccl_.CommGetAsyncError(handle_, &result);
    if (asked != kNcclSuccess) result = asked;
    if (result != kNcclInProgress) break;
    if (std::chrono::steady_clock::now() - start > timeout_) {
      throw Error(ErrorKind::kTimeout,
                  fmt::format("{} rank {} of {} waited {:g} s for the others in NCCL's {}", name_,
                              rank_, size_, std::chrono::duration<double>(timeout_).count(), what));
    }
    std::this_thread::yield();
  }
  if (result != kNcclSuccess) {
    throw Error(ErrorKind::kPeer,
                fmt::format("{} rank {} of {}: NCCL's {} failed: {} {}", name_, rank_, size_, what,
                            nccl_.GetErrorString(result), nccl_.GetLastError(handle_)));
  }
}

// NCCL opens connections when an operation first wants them, which does not go well with recording:
// one of each, small and large.
void NcclGroup::Connect() {
  constexpr size_t kLarge = size_t{2} << 20;
  const DeviceMemory scratch(2 * kLarge * sizeof(float));
  float *in = scratch.as<float>(), *out = in + kLarge;
  for (const size_t count : {static_cast<size_t>(size_), kLarge}) {
    const size_t part = count / static_cast<size_t>(size_);
    AllReduceSum(in, count);
    AllGatherV(in, out, std::vector<size_t>(static_cast<size_t>(size_), part * sizeof(float)));
    ReduceScatterV(in, out, std::vector<size_t>(static_cast<size_t>(size_), part));
  }
  Check(cudaStreamSynchronize(stream_), "first operations of NCCL");
}

void NcclGroup::AllReduceSum(float* data, size_t count) {
  if (count == 0) return;
  Finish(nccl_.AllReduce(data, data, count, kNcclFloat32, kNcclSum, handle_, stream_),
         "all-reduce");
}

void NcclGroup::AllGatherV(const void* in, void* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(size_));
  if (std::ranges::all_of(counts, [](size_t n) { return n == 0; })) return;
  auto* place = static_cast<std::byte*>(out);
  int result = nccl_.GroupStart();
  for (int r = 0; r < size_; ++r) {
    const size_t bytes = counts[static_cast<size_t>(r)];
    if (bytes > 0 && (result == kNcclSuccess || result == kNcclInProgress)) {
      result =
          nccl_.Broadcast(r == rank_ ? in : place, place, bytes, kNcclUint8, r, handle_, stream_);
    }
    place += bytes;
  }
  const int ended = nccl_.GroupEnd();
  Finish(result == kNcclSuccess || result == kNcclInProgress ? ended : result, "all-gather");
}

void NcclGroup::ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(size_));
  if (std::ranges::all_of(counts, [](size_t n) { return n == 0; })) return;
  int result = nccl_.GroupStart();
  for (int r = 0; r < size_; ++r) {
    const size_t count = counts[static_cast<size_t>(r)];
    if (count > 0 && (result == kNcclSuccess || result == kNcclInProgress)) {
      result = nccl_.Reduce(in, out, count, kNcclFloat32, kNcclSum, r, handle_, stream_);
    }
    in += count;
  }
  const int ended = nccl_.GroupEnd();
  Finish(result == kNcclSuccess || result == kNcclInProgress ? ended : result, "reduce-scatter");
}

}  // namespace switchyard::cuda
