// The ranks of one engine, and the front's control connection to the leader (rank 0).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/host/control_socket.h"
#include "comm/host/node_group.h"
#include "comm/net/file_descriptor.h"
#include "engine/config.h"
#include "server/front/front.h"
#include "server/ranks/rank_host.h"

namespace switchyard {

// One epoch of the ranks. Owned by Supervisor, on node 0. The constructor starts this node's ranks.
// A reader thread of this object delivers the leader's messages and reports the loss of any rank or
// node.
class EngineRanks : public RankLink {
 public:
  struct Events {
    std::function<void(const EngineMessage&)> on_message;
    // Called at most once, when the reader thread ends because a rank or node was lost. Only `why`
    // and `time` of the argument are set.
    std::function<void(const RanksEnd&)> on_lost;
  };
  // Starts this node's ranks. The leader connects to the endpoint.
  using StartHost = std::function<std::unique_ptr<RankHost>(const std::string& endpoint,
                                                            RankHost::OnExit on_exit)>;
  // `nodes`: the group with the other nodes; null for a single node.
  EngineRanks(const StartHost& start, std::unique_ptr<NodeGroup> nodes, Events events);
  ~EngineRanks() override;  // kills ranks that still run

  void Send(const std::vector<ControlMessage>& messages) override;

  // Waits until the ranks have loaded. Calls `progress` with the leader's loaded bytes. Throws
  // kPeer with the rank's own error if a rank fails. Returns no value if `cancelled` becomes true.
  std::optional<RankReady> WaitReady(const std::function<void(const LoadProgress&)>& progress,
                                     const std::atomic<bool>& cancelled);
  // Describes the rank with the oldest heartbeat, such as "rank 1 (pid 4711) has sent no heartbeat
  // for 25 s". Empty if all heartbeats are more recent than `limit`.
  std::string Silent(std::chrono::duration<double> limit) const;
  // Begins a planned restart of `ranks` (RankHost::Retire). Then call Reap.
  void Retire(const std::vector<int>& ranks, const std::string& why);
  // Kills the ranks that still run and waits for their end. Returns how the epoch ended. Throws
  // kPeer if a rank has not ended after the timeout.
  RankHost::Ending Reap(std::chrono::milliseconds timeout);
  void ClearKept() { host_->ClearKept(); }  // RankHost::ClearKept
  // RankHost::Absent, RankHost::AbsentHaveLoaded
  std::vector<int> Absent() const { return host_->Absent(); }
  bool AbsentHaveLoaded() const { return host_->AbsentHaveLoaded(); }
  SpareRanks Spares() const { return host_->Spares(); }  // RankHost::Spares
  // Kills ranks that still run, and joins the reader. After this call there are no more events, and
  // messages to the ranks have no effect. Does not wait until the rank processes have ended.
  void Close();
  void Discard() { host_->Discard(); }  // RankHost::Discard
  // Sends a shutdown message to the ranks and waits for their end. Returns false if some ranks had
  // to be killed.
  bool Shutdown(std::chrono::milliseconds timeout);

 private:
  void Read();
  bool AwaitsError();  // whether the leader may still send the error of a rank that loaded
  void Wake() const;   // ends the reader's wait for a message
  void OnExit(const std::string& how, bool cause);
  void Lost();
  bool WaitJoined();
  // Throws the error of a rank that ended. The message is the leader's error message if it arrives
  // soon, else `how`.
  [[noreturn]] void ThrowExit(std::unique_lock<std::mutex>& lock, const std::string& how);

  Events events_;
  std::string endpoint_;
  ControlSocket socket_;
  std::mutex send_mutex_;

  std::mutex mutex_;  // guards all members down to leaving_
  std::condition_variable changed_;
  std::optional<RankReady> ready_;
  LoadProgress progress_;
  std::string failure_;              // the leader's error message; empty: none received
  bool failure_is_invalid_ = false;  // failure_ is an error of a checkpoint or a flag
  std::string exit_;                 // how the first rank or node ended; empty: all run
  bool exit_is_cause_ = false;
  std::chrono::steady_clock::time_point exit_time_;
  bool reads_ = true;  // false: the reader has ended, and no more messages arrive
  bool leaving_ = false;

  std::atomic<bool> stop_{false};
  FileDescriptor wake_;  // an eventfd
  std::unique_ptr<NodeGroup> nodes_;
  std::unique_ptr<RankHost> host_;
  std::thread reader_;
};

// A layout of the ranks. It starts the ranks of each epoch that runs in this layout.

// Owned by Supervisor while the layout is in use. Used by one thread at a time.
class RankLayout {
 public:
  virtual ~RankLayout() = default;
  // Starts the ranks of the next epoch. `may_be_absent`: the epoch may run without the ranks that
  // have ended, until they have loaded. Polls `give_up` while it waits, and returns null if
  // `give_up` returned true. If it throws an Error, the layout is not started again.
  virtual std::unique_ptr<EngineRanks> Start(EngineRanks::Events events,
                                             std::function<bool()> give_up, bool may_be_absent) = 0;
  // Ends the processes that wait for the next epoch, and frees their memory. Call after the
  // destruction of the epoch's EngineRanks.
  virtual void Release() {}
  virtual int groups() const { return 1; }  // attention groups
};

}  // namespace switchyard
