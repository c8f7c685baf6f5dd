#include "comm/device/cuda/nccl_watch.h"

#include <thread>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/nccl_library.h"
#include "core/cuda/runtime.h"
#include "core/error.h"

namespace switchyard::cuda {

void NcclWatch::Wait(cudaEvent_t event) {
  using Clock = std::chrono::steady_clock;
  if (groups_.empty()) return;
  const auto start = Clock::now();
  auto looked = start;
  while (true) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) Check(state, "work of the GPU");
    cudaGetLastError();  // "not ready" stays there, and the next launch would be blamed for it
    if (const auto now = Clock::now(); now - looked > std::chrono::milliseconds(1)) {
      looked = now;
      Look(start);
    }
    std::this_thread::yield();
  }
}

void NcclWatch::Look(std::chrono::steady_clock::time_point start) {
  for (const NcclGroup* group : groups_) {
    const std::string error = group->AsyncError();
    if (error.empty()) continue;
    AbortAll();
    throw Error(ErrorKind::kPeer, error);
  }
  if (comm_.memory->aborted()) {
    AbortAll();
    Meet();  // throws the reason
  }
  // Kernels over peer memory give up by themselves, and say for whom they waited: they go first.
  constexpr std::chrono::seconds kLater{1};
  if (std::chrono::steady_clock::now() - start < timeout_ + kLater) return;
  AbortAll();
  Meet();  // throws who is missing
  throw Error(ErrorKind::kTimeout,
              fmt::format("rank {} waited {:g} s for work of its GPU behind NCCL's, and so did all "
                          "other ranks: none is lost, but their GPUs do not reach one another",
                          comm_.tp->rank(), std::chrono::duration<double>(timeout_).count()),
              "see what NCCL says with NCCL_DEBUG=WARN, and whether NCCL_SOCKET_IFNAME and "
              "NCCL_IB_HCA name the network between the hosts");
}

void NcclWatch::Meet() { comm_.tp->Barrier("the wait for GPUs that NCCL joins"); }

void NcclWatch::AbortAll() {
  if (groups_.empty()) return;
  if (before_abort_) before_abort_();
  // As one group of calls: an abort waits for its communicator's kernels, which may stand in the
  // stream behind those of one that has not heard of its own abort yet.
  const NcclLibrary& nccl = NcclLibrary::Get();
  nccl.GroupStart();
  for (NcclGroup* group : groups_) group->Abort();
  nccl.GroupEnd();
}

}  // namespace switchyard::cuda
