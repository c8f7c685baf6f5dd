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
namespace {

bool NotFailed(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

}  // namespace

NcclGroup::NcclGroup(const NcclLibrary& nccl, const NcclUniqueId& id, int rank, int size,
                     std::string name, cudaStream_t stream, std::shared_ptr<NcclWatch> watch)
    : nccl_(nccl),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      stream_(stream),
      watch_(std::move(watch)) {
  watch_->groups_.push_back(this);
  NcclConfig config;
  try {
    Finish(nccl_.CommInitRankConfig(&handle_, size, id, rank, &config), "start");
    Connect();
  } catch (...) {
    Abort();
    std::erase(watch_->groups_, this);
    throw;
  }
}

NcclGroup::~NcclGroup() {
  std::erase(watch_->groups_, this);
  if (handle_ == nullptr) return;
  // After an error a rank does not wait for its peers.
  try {
    if (std::uncaught_exceptions() == exceptions_) {
      Finish(nccl_.CommFinalize(handle_), "end");
      nccl_.CommDestroy(handle_);
      return;
    }
  } catch (const std::exception& error) {
    LOG_DEBUG("{}", error.what());
  }
  Abort();
}

NcclGroup& NcclGroup::From(Collectives* group) {
  auto* nccl = dynamic_cast<NcclGroup*>(group);
  CHECK(nccl != nullptr);
  return *nccl;
}

void NcclGroup::Abort() {
  if (handle_ != nullptr) nccl_.CommAbort(std::exchange(handle_, nullptr));
}

std::string NcclGroup::AsyncError() const {
  int state = kNcclSuccess;
  if (handle_ == nullptr) return {};
  const int query_result = nccl_.CommGetAsyncError(handle_, &state);
  if (query_result != kNcclSuccess) state = query_result;
  if (NotFailed(state)) return {};
  return fmt::format("{} rank {} of {}: NCCL lost its peers: {} {}", name_, rank_, size_,
                     nccl_.GetErrorString(state), nccl_.GetLastError(handle_));
}

void NcclGroup::CheckAlive() const {
  if (handle_ == nullptr)
    throw Error(
        ErrorKind::kPeer,
        fmt::format("{} rank {} of {}: NCCL was aborted by an earlier error", name_, rank_, size_));
}

// Polls until NCCL has enqueued the operation. An internal thread of NCCL enqueues it, possibly
// after a wait for peers.
void NcclGroup::Finish(int result, const char* what) {
  const auto start = std::chrono::steady_clock::now();
  while (result == kNcclInProgress) {
    const int query_result = nccl_.CommGetAsyncError(handle_, &result);
    if (query_result != kNcclSuccess) result = query_result;
    if (result != kNcclInProgress) break;
    if (watch_->PeersEnded()) {
      watch_->AbortAll();
      watch_->CheckAborted();  // throws the reason
    }
    if (std::chrono::steady_clock::now() - start > watch_->timeout()) {
      watch_->AbortAll();  // before memory is freed: cudaFree waits for running kernels
      throw Error(
          ErrorKind::kTimeout,
          fmt::format("{} rank {} of {} waited {:g} s for its peers in NCCL {}", name_, rank_,
                      size_, std::chrono::duration<double>(watch_->timeout()).count(), what));
    }
    std::this_thread::yield();
  }
  if (result != kNcclSuccess) {
    const std::string error =
        fmt::format("{} rank {} of {}: NCCL {} failed: {} {}", name_, rank_, size_, what,
                    nccl_.GetErrorString(result), nccl_.GetLastError(handle_));
    watch_->ThrowLost(error);
  }
}

// NCCL opens connections lazily, which conflicts with graph capture. So each operation runs once
// here, small and large.
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
  WaitForStream();
}

// Exchanges small and large messages once, because NCCL uses more channels for large ones.
void NcclGroup::ConnectPairs() {
  constexpr size_t kLarge = size_t{4} << 20;
  const auto members = static_cast<size_t>(size_);
  const DeviceMemory from(kLarge), to(members * kLarge);
  for (const size_t bytes : {size_t{256}, kLarge}) {
    std::vector<NcclMessage> sends, receives;
    for (int r = 0; r < size_; ++r) {
      sends.push_back({r, from.data(), bytes});
      receives.push_back({r, to.data() + static_cast<size_t>(r) * kLarge, bytes});
    }
    Exchange(sends, receives, stream_);
  }
  WaitForStream();
}

void NcclGroup::WaitForStream() {
  const Event end;
  end.Record(stream_);
  watch_->Wait(end.get());
}

void NcclGroup::Exchange(std::span<const NcclMessage> sends, std::span<const NcclMessage> receives,
                         cudaStream_t stream) {
  CheckAlive();
  int result = nccl_.GroupStart();
  for (const NcclMessage& m : sends) {
    if (m.bytes > 0 && NotFailed(result))
      result = nccl_.Send(m.data, m.bytes, kNcclUint8, m.peer, handle_, stream);
  }
  for (const NcclMessage& m : receives) {
    if (m.bytes > 0 && NotFailed(result))
      result = nccl_.Recv(m.data, m.bytes, kNcclUint8, m.peer, handle_, stream);
  }
  const int ended = nccl_.GroupEnd();
  Finish(NotFailed(result) ? ended : result, "exchange");
}

void NcclGroup::AllReduceSum(float* data, size_t count) {
  if (count == 0) return;
  CheckAlive();
  Finish(nccl_.AllReduce(data, data, count, kNcclFloat32, kNcclSum, handle_, stream_),
         "all-reduce");
}

void NcclGroup::AllGatherV(const void* in, void* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(size_));
  if (std::ranges::all_of(counts, [](size_t n) { return n == 0; })) return;
  auto* place = static_cast<std::byte*>(out);
  CheckAlive();
  int result = nccl_.GroupStart();
  for (int r = 0; r < size_; ++r) {
    const size_t bytes = counts[static_cast<size_t>(r)];
    if (bytes > 0 && NotFailed(result)) {
      result =
          nccl_.Broadcast(r == rank_ ? in : place, place, bytes, kNcclUint8, r, handle_, stream_);
    }
    place += bytes;
  }
  const int ended = nccl_.GroupEnd();
  Finish(NotFailed(result) ? ended : result, "all-gather");
}

void NcclGroup::ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) {
  CHECK_EQ(counts.size(), static_cast<size_t>(size_));
  if (std::ranges::all_of(counts, [](size_t n) { return n == 0; })) return;
  CheckAlive();
  int result = nccl_.GroupStart();
  for (int r = 0; r < size_; ++r) {
    const size_t count = counts[static_cast<size_t>(r)];
    if (count > 0 && NotFailed(result)) {
      result = nccl_.Reduce(in, out, count, kNcclFloat32, kNcclSum, r, handle_, stream_);
    }
    in += count;
  }
  const int ended = nccl_.GroupEnd();
  Finish(NotFailed(result) ? ended : result, "reduce-scatter");
}

}  // namespace switchyard::cuda
