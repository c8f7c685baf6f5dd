// Host-side wait with a timeout for streams that run NCCL kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"

namespace switchyard::cuda {

class NcclGroup;

// One per rank, shared by its groups; used by the rank's thread only. NCCL kernels have no timeout:
// if a peer is missing, the stream never completes, and cudaStreamSynchronize never returns. So the
// host polls the event. Meanwhile it checks NCCL's asynchronous errors, the host communicator for
// lost ranks, and the timeout.
class NcclWatch {
 public:
  NcclWatch(RankComm& comm, std::chrono::milliseconds timeout) : comm_(comm), timeout_(timeout) {}

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Waits until `event` completes; returns immediately if there are no groups. On an error or
  // timeout it aborts all groups, so that the stream drains. Error kPeer has the reason for which
  // the arena was aborted, else NCCL's error text. Error kTimeout names the missing rank. NCCL does
  // not report which rank is missing. So the waiting ranks run a barrier on the host communicator,
  // whose timeout names the rank.
  void Wait(cudaEvent_t event);

  // `hook` is called before groups are aborted. The hook has to destroy the CUDA graphs that
  // captured operations of the groups, because NCCL's abort waits for such graphs.
  void BeforeAbort(std::function<void()> hook) { before_abort_ = std::move(hook); }

  // Terminates the running kernels of all groups. Later calls of the groups throw Error kPeer.
  void AbortAll();

 private:
  friend class NcclGroup;  // registers and unregisters itself
  void CheckPeers(std::chrono::steady_clock::time_point start);
  bool PeersEnded() const { return comm_.memory->aborted(); }
  void CheckAborted() const { comm_.memory->CheckAborted(); }
  // Barrier on the host communicator, which names the missing rank.
  void Barrier();
  // Aborts all groups after the error `error` of NCCL. Throws Error kPeer, after a wait of at most
  // 5 s for the abort of the arena.
  [[noreturn]] void ThrowLost(const std::string& error);

  RankComm& comm_;
  std::chrono::milliseconds timeout_;
  std::vector<NcclGroup*> groups_;
  std::function<void()> before_abort_;
};

}  // namespace switchyard::cuda
