#include "comm/device/cuda/nccl_watch.h"

#include <algorithm>
#include <thread>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/nccl_library.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {

void NcclWatch::Wait(cudaEvent_t event) {
  if (groups_.empty()) return;
  PollEvent(event, [this, start = std::chrono::steady_clock::now()] { CheckPeers(start); });
}

void NcclWatch::CheckPeers(std::chrono::steady_clock::time_point start) {
  if (PeersEnded()) {
    AbortAll();
    CheckAborted();  // throws the reason
  }
  for (const NcclGroup* group : groups_) {
    if (const std::string error = group->AsyncError(); !error.empty()) ThrowLost(error);
  }
  // Added to the timeout of this wait. So peer memory kernels time out first and report the missing
  // peer.
  constexpr std::chrono::seconds kLater{1};
  if (std::chrono::steady_clock::now() - start < timeout_ + kLater) return;
  AbortAll();
  Barrier();  // if a rank is missing, the barrier times out and names it
  throw Error(
      ErrorKind::kTimeout,
      fmt::format("rank {} waited {:g} s for GPU work queued after NCCL kernels, and so did all "
                  "other ranks: all are alive, but NCCL cannot connect their GPUs",
                  comm_.mesh.rank(), std::chrono::duration<double>(timeout_).count()),
      "run with NCCL_DEBUG=WARN, and check that NCCL_SOCKET_IFNAME and "
      "NCCL_IB_HCA name the network between the hosts");
}

// NCCL detects the end of a process by its sockets. The kernel closes them before it has freed the
// memory of the GPU, which may take seconds, and only then the parent sees the end. A rank that
// reports the parent's reason can take part in the next epoch.
void NcclWatch::ThrowLost(const std::string& error) {
  static constexpr std::chrono::milliseconds kParentTime{5000}, kPoll{1};
  AbortAll();
  const auto end = std::chrono::steady_clock::now() + std::min(kParentTime, timeout_);
  while (!PeersEnded() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(kPoll);
  CheckAborted();
  throw Error(ErrorKind::kPeer, error);
}

void NcclWatch::Barrier() { comm_.tp->Barrier("NCCL stream wait"); }

void NcclWatch::AbortAll() {
  if (groups_.empty()) return;
  if (before_abort_) before_abort_();
  // Aborts run as one NCCL group. An abort waits for its communicator's kernels, which may be
  // queued after kernels of a communicator that is not aborted yet.
  const NcclLibrary& nccl = NcclLibrary::Get();
  nccl.GroupStart();
  for (NcclGroup* group : groups_) group->Abort();
  nccl.GroupEnd();
}

}  // namespace switchyard::cuda
