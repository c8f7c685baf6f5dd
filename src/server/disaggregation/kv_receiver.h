// The decode worker's side of the transfer: writes keys and values of prompts into this server's
// caches.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/disaggregation/kv_connection.h"
#include "server/disaggregation/options.h"
#include "server/disaggregation/running_time.h"
#include "server/front/kv_transfers.h"

namespace switchyard {

// Has one connection to each prefill worker that a request names, opened for its first request. A
// request that has pages is announced to its prefill worker (KvWant). Rows are written as they
// arrive. The first output of the prefill worker, or an error, then starts or ends the request. A
// request ends with an error if its connection ends, or --disaggregation-timeout after its last
// event.
//
// Rows are written only while mutex_ is held and the request is in rooms_. So no row is written
// after Close, when its pages may belong to another request.
class KvReceiver : public KvTransfers {
 public:
  KvReceiver(KvTransferOptions options, KvTransferTargets targets);
  ~KvReceiver() override;

  // Ends all threads. Afterwards nothing is sent to the ranks, and the other members have no
  // effect.
  void Stop();
  // Sets the memory of the ranks of the next epoch. Call it before these ranks run.
  void Use(std::shared_ptr<SharedArena> arena);

  KvRole role() const override { return KvRole::kImport; }
  void Open(uint64_t id, const KvRoom& room, int64_t prompt_tokens) override;
  void OnOutput(uint64_t id, int group, const RequestOutput& output) override;
  void Close(uint64_t id, const std::string& why) override;
  void Refuse(const KvRoom& room, const std::string& why) override;
  void SetPaused(bool paused) override;

 private:
  using Clock = std::chrono::steady_clock;
  // A connection to a prefill worker, which a thread of the link opens.
  struct Link {
    HostPort address;
    std::unique_ptr<KvConnection> connection;  // null until it is open; set once, under mutex_
    std::vector<KvMessage> early;              // messages that are sent once the connection is open
    std::string failure;                       // not empty: the link has ended
    // Of the prefill worker, with shm; for the reader's thread. Null after the end of the link, so
    // that memory of ranks that have ended is freed.
    std::shared_ptr<MappedCaches> caches;
    uint64_t arena = 0;  // KvArena::arena of `caches`
    std::thread opener;
  };
  using LinkPtr = std::shared_ptr<Link>;
  struct Room {
    uint64_t id = 0;
    int64_t prompt_tokens = 0;
    LinkPtr link;
    int group = 0;
    KvPages pages;             // positions to write; `end` 0: the request has no pages yet
    std::set<int64_t> states;  // layers whose state has been written to pages.state
    bool answered = false;     // the first output is on its way to the ranks
    Clock::time_point deadline;
  };
  using Rooms = std::map<KvKey, Room>;

  LinkPtr LinkTo(const HostPort& address);          // requires mutex_
  void Send(Link& link, const KvMessage& message);  // requires mutex_
  void OpenLink(const LinkPtr& link);               // on its opener thread
  static void JoinThreads(Link& link);              // after closing its connection, if any
  std::string Connect(Link& link, std::unique_ptr<KvConnection>* connection);
  void OnMessage(Link& link, const KvMessage& message, TcpStream& stream);
  void OnRows(Link& link, const KvRowsHead& head, TcpStream& stream);
  void OnState(Link& link, const KvStateHead& head, TcpStream& stream);
  // Receives `size` bytes of rows or of a state. Null: there is no memory for them. They were
  // skipped, and the request ends with an error on both workers.
  std::shared_ptr<std::byte> ReceiveBytes(Link& link, const KvKey& key, int64_t size,
                                          TcpStream& stream);
  void OnPlace(Link& link, const KvPlace& place);
  // Maps the caches of a prefill worker on GPUs. False: they cannot be mapped, and a message
  // requests that the prefill worker sends the rows of `place`.
  bool MapFor(Link& link, const KvPlace& place);
  void OnDone(Link& link, const KvDone& done);
  void OnFailed(Link& link, const KvFailed& failed);
  void OnArena(Link& link, const KvArena& arena) const;
  // Copies rows of a room into its pages. False: the room has ended. Error kInvalid if its pages do
  // not include the positions.
  bool Write(const Link& link, const KvKey& key, const KvLayerRows& from, int64_t layer,
             int64_t begin, int64_t end);
  // The same for the state of a layer.
  bool WriteState(const Link& link, const KvKey& key, std::span<const KvStateShard> from,
                  int64_t layer);
  bool HasState(int64_t layer) const;  // any number; requires mutex_
  // The first layer whose state the request needs and has not got. Requires mutex_.
  std::optional<int64_t> MissingState(const Room& room) const;
  void EndLink(const LinkPtr& link, const std::string& why);
  // Ends the request with an error. Requires mutex_.
  void Fail(Room& room, const std::string& error);
  void Sweep();
  // Maps the caches of this server's ranks on GPUs before they are needed, because it takes
  // seconds.
  void AttachEarly(std::unique_lock<std::mutex>& lock);
  Clock::time_point Deadline() const { return time_.Now() + options_.timeout; }  // requires mutex_

  const KvTransferOptions options_;
  const KvTransferTargets targets_;
  const Statement statement_;

  std::mutex mutex_;  // guards the members down to stop_
  std::condition_variable changed_;
  RunningTime time_;
  std::shared_ptr<MappedCaches> caches_;
  Rooms rooms_;
  std::map<uint64_t, KvKey> keys_;
  std::map<std::pair<std::string, int>, LinkPtr> links_;
  std::vector<LinkPtr> ended_;  // links that the sweeper has to destroy
  std::vector<std::pair<uint64_t, RequestOutput>> outputs_;  // outputs to send to the ranks
  std::atomic<bool> stop_{false};

  std::thread sweeper_;  // last: uses the members above
};

}  // namespace switchyard
