// How the host waits for streams in which NCCL's kernels run.
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

// One per rank, shared by its groups; the rank's thread only. NCCL's kernels have no deadline: a
// stream behind one whose peer does not come never ends, and neither does cudaStreamSynchronize. So
// the host asks for the end again and again, and meanwhile whether NCCL reports an error, whether
// the host's own connections say that a rank is lost, and how long it has been.
class NcclWatch {
 public:
  NcclWatch(RankComm& comm, std::chrono::milliseconds timeout) : comm_(comm), timeout_(timeout) {}

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Until `event` has passed; returns at once where there are no groups. After an error or the
  // deadline all groups are aborted, so that the stream ends; Error kPeer has NCCL's words, or
  // those that a rank ended with. Error kTimeout names who does not come: NCCL does not know, so
  // the ranks that wait meet over the host's communicator, and who is missing there is named by its
  // deadline.
  void Wait(cudaEvent_t event);

  // What is to be done before groups are aborted: letting go of graphs that were recorded with
  // them, as NCCL's abort waits until none is left.
  void BeforeAbort(std::function<void()> hook) { before_abort_ = std::move(hook); }

 private:
  friend class NcclGroup;  // which adds and removes itself
  void Look(std::chrono::steady_clock::time_point start);
  bool PeersEnded() const { return comm_.memory->aborted(); }
  // The ranks meet over the host's communicator, which names who is missing.
  void Meet();
  void AbortAll();

  RankComm& comm_;
  std::chrono::milliseconds timeout_;
  std::vector<NcclGroup*> groups_;
  std::function<void()> before_abort_;
};

}  // namespace switchyard::cuda
