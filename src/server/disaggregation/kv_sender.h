// The prefill worker's side of the transfer: sends the keys and values of prompts to decode
// workers.
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
#include <string>
#include <thread>
#include <vector>

#include "comm/net/authenticated_listener.h"
#include "server/disaggregation/kv_connection.h"
#include "server/disaggregation/options.h"
#include "server/disaggregation/running_time.h"
#include "server/front/kv_transfers.h"

namespace switchyard {

// A room is open from the first of two events: the request arrives here (Open), or a decode worker
// has pages for it (KvWant). Rows are sent as soon as both are known: those of a layer while later
// layers of the same pass are computed. The room ends with KvDone, or with an error for both
// workers: if either request ends, if the connection ends, or --disaggregation-timeout after the
// last event of the room. Recurrent states follow the last rows: their slot is known once the
// prompt is computed.
//
// Accepts connections at the bootstrap port on a thread of its own.
class KvSender : public KvTransfers {
 public:
  // Error kResource if the port is in use.
  KvSender(KvTransferOptions options, KvTransferTargets targets);
  ~KvSender() override;

  int port() const { return listener_.address().port; }
  // Ends all threads. Afterwards nothing is sent to the ranks, and the other members have no
  // effect.
  void Stop();
  // Sets the memory of the ranks of the next epoch. Call it before these ranks run.
  void Use(std::shared_ptr<SharedArena> arena);

  KvRole role() const override { return KvRole::kExport; }
  void Open(uint64_t id, const KvRoom& room, int64_t prompt_tokens) override;
  void OnOutput(uint64_t id, int group, const RequestOutput& output) override;
  void Close(uint64_t id, const std::string& why) override;
  void Refuse(const KvRoom& room, const std::string& why) override;
  void SetPaused(bool paused) override;

 private:
  using Clock = std::chrono::steady_clock;
  using Peer = std::shared_ptr<KvConnection>;
  // Positions of some layers, which a pass computes, or has computed; or states of all layers.
  struct Rows {
    int64_t begin = 0, end = 0;
    int64_t first_layer = 0, end_layer = 0;
    uint64_t pass = 0;
    int32_t state = -1;  // not −1: the recurrent states in this slot, and no positions
  };
  struct Room {
    std::optional<uint64_t> id;  // of the request here; nullopt: none yet, or it has ended
    int64_t prompt_tokens = 0;   // as here
    Peer peer;                   // null: no decode worker has requested the room
    std::optional<int64_t> wanted_tokens;  // KvWant::prompt_tokens; nullopt: no KvWant yet
    int64_t begin = 0;                     // KvWant::begin
    int group = 0;
    KvPages known;            // the last RequestOutput::kv
    uint64_t updates = 0;     // of `known`
    uint64_t version = 0;     // changes if the pages of `known` change
    int64_t sent = 0;         // the rows before it have arrived, in all layers
    bool state_sent = false;  // the states after the prompt have arrived
    Rows part;                // rows from `sent` on that have arrived in the first layers only
    bool sending = false;     // the writer's thread sends rows, or a KvPlace has no KvTaken yet
    Rows step;                // these rows
    uint64_t step_version = 0;
    std::string first;   // encoded first output; empty: not sampled yet
    bool ended = false;  // `first` is the last output, so no pages are needed
    // The room has failed, and the server that has not requested it yet will get this error.
    std::string error;
    Clock::time_point deadline;
  };
  using Rooms = std::map<KvKey, Room>;

  // A request whose pages have to be released. The release is sent without holding the lock, as
  // are the requests in wanted_.
  struct Release {
    uint64_t id = 0;
    std::string error;
  };

  void Accept();
  void Greet(AuthenticatedListener::Arrival arrival);
  void OnEnd(const std::string& why, const KvConnection* peer);
  void OnMessage(const std::weak_ptr<KvConnection>& from, const KvMessage& message);
  void SendStep(const KvKey& key, TcpStream& stream, const Peer& peer);
  // Sends the rows of `step` of a room. `caches`: those with its pages, with this format. They are
  // held only during copies, because a send may block for long while their ranks end. `buffer`:
  // memory for one piece. False: the caches are gone.
  bool SendRows(const KvKey& key, const Room& room, const std::weak_ptr<MappedCaches>& caches,
                const KvFormat& format, std::byte* buffer, TcpStream& stream,
                const KvConnection& peer) const;
  // Maps the caches of ranks on GPUs before they are needed, because it takes seconds.
  void AttachEarly(std::unique_lock<std::mutex>& lock);
  void Sweep();
  void Pace();  // continues rooms as soon as ranks have computed a layer
  // These require mutex_. CheckPrompts, Advance and Fail may erase the room.
  void OnWant(const Peer& peer, const KvWant& want);
  void OnTaken(const Peer& peer, const KvTaken& taken);
  void OnUnmapped(const Peer& peer, const KvUnmapped& unmapped);
  // Whether the decode worker copies rows from the memory of the ranks.
  bool Maps(const Peer& peer) const;
  // Fails the room and returns false if both workers have sent its prompt, with different lengths.
  bool CheckPrompts(Rooms::iterator room);
  void Advance(Rooms::iterator room);  // starts the room's next step, after an event
  // The rows that can be sent now; nullopt: none.
  std::optional<Rows> NextRows(const Room& room) const;
  // Whether the decode worker needs the states after the prompt, and they have not arrived yet.
  bool LacksStates(const Room& room) const;
  void EndStep(Room& room) const;  // its rows have arrived
  static void Restart(Room& room);
  bool AwaitsLayers(const Room& room) const;
  void Fail(Rooms::iterator room, const std::string& error);  // sends the error to both workers
  void Forget(Rooms::iterator room);                          // its request here has ended
  void ReleaseSoon(uint64_t id, const std::string& error);
  void WantSoon(const Room& room);  // no effect until both servers have the request
  std::string WhyLate(const KvKey& key, const Room& room) const;
  KvArena ArenaMessage() const;
  Clock::time_point Deadline() const { return time_.Now() + options_.timeout; }  // requires mutex_

  const KvTransferOptions options_;
  const KvTransferTargets targets_;
  const Statement statement_;
  TcpListener listener_;

  std::mutex mutex_;  // guards the members down to stop_
  std::condition_variable changed_;
  RunningTime time_;
  std::shared_ptr<MappedCaches> caches_;
  uint64_t arena_ = 0;  // KvArena::arena of caches_
  Rooms rooms_;
  std::map<uint64_t, KvKey> keys_;  // keys of the open requests, by id
  std::vector<Release> releases_;
  std::vector<uint64_t> wanted_;  // requests whose rows a decode worker has asked for
  // Reported in errors of rooms that no decode worker has requested: the refused handshakes, and
  // the last worker that was refused after its handshake.
  std::string refusals_, last_refusal_;
  std::vector<Peer> peers_;
  // Decode workers on this host that cannot map the caches of the present ranks.
  std::set<const KvConnection*> without_map_;
  std::atomic<bool> stop_{false};

  std::thread acceptor_, sweeper_, pacer_;  // last: use the members above
};

}  // namespace switchyard
