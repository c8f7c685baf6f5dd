#include "comm/device/tcp/tcp_ranks.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/frames.h"
#include "comm/device/remote_ranks.h"
#include "comm/net/authenticated_listener.h"
#include "comm/net/handshake.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAbortTimeout = 1s;    // timeout for notifying all peers of an abort
constexpr milliseconds kGoodbyeTimeout = 5s;  // timeout for receiving the kBye of all peers
constexpr milliseconds kBeatTimeout = 1s;     // timeout for a frame that fits the socket's buffer
// How long to wait for a failing peer's reason. The reason arrives on the connection that the peer
// opened, possibly shortly after this rank finds its own connection to the peer closed.
constexpr milliseconds kReasonTime = 300ms;

template <typename T>
iovec PartOf(T& value) {
  return {const_cast<std::remove_const_t<T>*>(&value), sizeof value};
}

ConnectionKey KeyOf(const TcpWorld& world) { return {.bytes = world.token, .is_secret = true}; }

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

class TcpRanks : public RemoteRanks {
 public:
  TcpRanks(SharedArena& arena, int rank, const TcpWorld& world);
  ~TcpRanks() override;
  // Connects to all ranks of other nodes. Returns false if give_up returns true.
  bool Connect(TcpListener& listener, milliseconds timeout, const std::function<bool()>& give_up);

  bool IsRemote(int rank) const override { return peers_[rank] != nullptr; }
  void Put(int rank, const std::byte* image, std::span<const ByteRange> ranges, size_t flag_offset,
           uint32_t value, milliseconds timeout) override;
  void Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
             milliseconds timeout) override;
  void Abort(std::string_view reason) noexcept override;
  void SendBeats(uint64_t beats) noexcept override;

 private:
  struct Peer {
    TcpStream out;                      // opened by this rank; used by the rank's thread only
    bool usable = false;                // `out` is between two frames
    steady_clock::time_point beat_due;  // time of the next heartbeat on `out`
    TcpStream in;                       // opened by the peer; used by the server thread
    bool connected = false;
    std::thread server;
  };
  enum class CloseReason { kNone, kBye, kAbort };  // the peer's last frame

  // Limit of waits on the rank's thread. Its stop condition also sends heartbeats.
  IoLimit Limit(milliseconds timeout) {
    return IoLimit::After(timeout, [this] {
      if (const uint64_t beats = local_arena_.Beat(); beats != 0) SendBeats(beats);
      return local_arena_.aborted();
    });
  }
  void OpenAll(const IoLimit& limit);
  void AcceptAll(TcpListener& listener, const IoLimit& limit, milliseconds timeout);
  bool Expects(int from) const;
  std::string Missing() const;

  void Request(int rank, std::span<iovec> parts, milliseconds timeout);
  void CheckDone(IoResult result, int rank, const char* stage, milliseconds timeout);

  void Serve(int rank);
  CloseReason ServeFrames(int rank);
  bool ReceiveRanges(TcpStream& in, const Frame& frame);
  bool ServeFetch(TcpStream& in, const Frame& frame);
  bool ReceiveReason(TcpStream& in, const Frame& frame);
  void SendGoodbye();

  const RemoteArenaAccess local_arena_;
  const TcpWorld world_;
  std::vector<std::unique_ptr<Peer>> peers_;  // [world]; null for ranks of this node

  // Counts sends, to order accesses to the arena between threads. The rank's thread increments it
  // (release) between its accesses and the send that follows them. The server threads load it
  // (acquire) before the accesses that handle the peer's response.
  std::atomic<uint64_t> sent_{0};
  std::atomic<bool> leaving_{false};  // the destructor is closing the connections

  std::mutex mutex_;  // guards `serving_`
  std::condition_variable peer_closed_;
  int serving_ = 0;  // open incoming connections
};

TcpRanks::TcpRanks(SharedArena& arena, int rank, const TcpWorld& world)
    : local_arena_(arena, rank), world_(world), peers_(world.listeners.size()) {
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (world.NodeOf(r) != world.NodeOf(rank)) peers_[r] = std::make_unique<Peer>();
  }
}

// ---- Connecting ----

bool TcpRanks::Connect(TcpListener& listener, milliseconds timeout,
                       const std::function<bool()>& give_up) {
  std::atomic<bool> failed{false}, stopped{false};
  const IoLimit limit = IoLimit::After(timeout, [&] {
    if (give_up && give_up()) stopped = true;
    return stopped || failed || local_arena_.aborted();
  });
  // Every rank accepts connections while it opens its own, since both ends take part in a
  // handshake.
  std::exception_ptr accept_error, open_error;
  std::thread acceptor([&] {
    pthread_setname_np(pthread_self(), "acceptor");
    try {
      AcceptAll(listener, limit, timeout);
    } catch (...) {
      accept_error = std::current_exception();
      failed = true;
    }
  });
  bool timed_out = false;
  try {
    OpenAll(limit);
  } catch (const Error& error) {
    open_error = std::current_exception();
    timed_out = error.kind() == ErrorKind::kTimeout;
    if (!timed_out) failed = true;
  } catch (...) {
    open_error = std::current_exception();
    failed = true;
  }
  acceptor.join();
  if (stopped) return false;
  if (open_error && !timed_out) std::rethrow_exception(open_error);
  if (accept_error) std::rethrow_exception(accept_error);  // names all missing ranks
  if (open_error) std::rethrow_exception(open_error);

  for (const auto& peer : peers_) {
    if (peer != nullptr) ++serving_;  // before any server thread starts
  }
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (peers_[r] != nullptr) peers_[r]->server = std::thread([this, r] { Serve(r); });
  }
  return true;
}

void TcpRanks::OpenAll(const IoLimit& limit) {
  const int size = static_cast<int>(peers_.size());
  const int rank = local_arena_.rank();
  for (int k = 1; k < size; ++k) {
    const int r = (rank + k) % size;
    if (peers_[r] == nullptr) continue;
    OpenedConnection opened =
        OpenAuthenticated(world_.listeners[r], KeyOf(world_),
                          {.purpose = Purpose::kRank, .from = rank, .to = r}, limit);
    if (!opened.stream) {
      if (local_arena_.aborted()) local_arena_.ThrowAborted();
      if (opened.verdict != Verdict::kAccepted) {
        throw Error(ErrorKind::kPeer,
                    fmt::format("at {}: {}", world_.listeners[r].Text(),
                                DescribeVerdict(opened.verdict, fmt::format("rank {}", rank),
                                                world_.Describe(r))));
      }
      throw Error(ErrorKind::kTimeout, fmt::format("rank {} cannot connect to {} at {}", rank,
                                                   world_.Describe(r), world_.listeners[r].Text()));
    }
    peers_[r]->out = std::move(*opened.stream);
    peers_[r]->usable = true;
  }
}

void TcpRanks::AcceptAll(TcpListener& listener, const IoLimit& limit, milliseconds timeout) {
  AuthenticatedListener authenticated(listener,
                                      {.key = KeyOf(world_),
                                       .purpose = Purpose::kRank,
                                       .self = local_arena_.rank(),
                                       .expects = [this](int from) { return Expects(from); }});
  while (!Missing().empty()) {
    auto arrival = authenticated.Accept(limit);
    if (!arrival) {
      if (local_arena_.aborted()) local_arena_.ThrowAborted();
      throw Error(ErrorKind::kTimeout,
                  fmt::format("rank {} waited {:g} s for {} to connect", local_arena_.rank(),
                              Seconds(timeout), Missing()));
    }
    Peer& peer = *peers_[arrival->from];
    peer.in = std::move(arrival->stream);
    peer.connected = true;
  }
}

bool TcpRanks::Expects(int from) const {
  return from >= 0 && from < static_cast<int>(peers_.size()) && peers_[from] != nullptr &&
         !peers_[from]->connected;
}

std::string TcpRanks::Missing() const {
  std::vector<std::string> missing;
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (peers_[r] != nullptr && !peers_[r]->connected) missing.push_back(world_.Describe(r));
  }
  return Joined(missing, ", ");
}

// ---- The rank's thread ----

// Throws for every result but kDone; the connection is then in the middle of a frame. `stage`: of a
// fetch; null: a frame was sent.
void TcpRanks::CheckDone(IoResult result, int rank, const char* stage, milliseconds timeout) {
  if (result == IoResult::kDone) return;
  peers_[rank]->usable = false;
  if (result == IoResult::kClosed) {
    const auto give_up = steady_clock::now() + kReasonTime;
    while (!local_arena_.aborted() && steady_clock::now() < give_up)
      std::this_thread::sleep_for(5ms);
    local_arena_.Abort(world_.Describe(rank) + " is gone: its connection closed");
  }
  if (local_arena_.aborted()) local_arena_.ThrowAborted();
  throw Error(ErrorKind::kTimeout,
              fmt::format("rank {} waited {:g} s for {} {}", local_arena_.rank(), Seconds(timeout),
                          world_.Describe(rank),
                          stage ? fmt::format("in {}", stage) : "to receive a message"));
}

void TcpRanks::Request(int rank, std::span<iovec> parts, milliseconds timeout) {
  Peer& peer = *peers_[rank];
  sent_.fetch_add(1, std::memory_order_release);
  if (!peer.usable) CheckDone(IoResult::kClosed, rank, nullptr, timeout);
  peer.usable = false;  // no heartbeat within the frame
  CheckDone(peer.out.Send(parts, Limit(timeout)), rank, nullptr, timeout);
  peer.usable = true;
}

void TcpRanks::Put(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                   size_t flag_offset, uint32_t value, milliseconds timeout) {
  std::vector<iovec> parts;
  do {
    const auto some = ranges.first(std::min(ranges.size(), kMaxFrameRanges));
    ranges = ranges.subspan(some.size());
    const Frame frame{.kind = ranges.empty() ? FrameKind::kWriteAndRaise : FrameKind::kWrite,
                      .value = value,
                      .offset = flag_offset,
                      .count = some.size()};
    parts.assign({PartOf(frame), {const_cast<ByteRange*>(some.data()), some.size_bytes()}});
    for (const ByteRange& range : some) {
      parts.push_back({const_cast<std::byte*>(image) + range.offset, range.bytes});
    }
    Request(rank, parts, timeout);
  } while (!ranges.empty());
}

void TcpRanks::Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
                     milliseconds timeout) {
  const Frame frame{.kind = FrameKind::kFetch, .offset = range.offset, .count = range.bytes};
  iovec part = PartOf(frame);
  Request(rank, {&part, 1}, timeout);
  Frame answer;
  std::array<iovec, 2> parts{PartOf(answer), iovec{image + range.offset, range.bytes}};
  CheckDone(peers_[rank]->out.Receive(parts, Limit(timeout)), rank, stage, timeout);
  CHECK(answer.kind == FrameKind::kBytes && answer.count == range.bytes);
}

void TcpRanks::SendBeats(uint64_t beats) noexcept {
  const auto now = steady_clock::now();
  const int receivers = local_arena_.rank() == 0 ? static_cast<int>(peers_.size()) : 1;
  const Frame frame{.kind = FrameKind::kBeat, .count = beats};
  // Sends to one rank of each host only, since the ranks of a host share the counters.
  for (int r = 0; r < receivers; r += world_.ranks_per_node) {
    Peer* peer = peers_[r].get();
    if (peer == nullptr || !peer->usable || (beats != 0 && now < peer->beat_due)) continue;
    pollfd item{peer->out.fd(), POLLOUT, 0};
    if (poll(&item, 1, 0) != 1 || item.revents != POLLOUT) continue;
    peer->beat_due = now + kBeatInterval;
    iovec part = PartOf(frame);
    peer->usable =
        peer->out.Send(std::span(&part, 1), IoLimit::After(kBeatTimeout)) == IoResult::kDone;
  }
}

void TcpRanks::Abort(std::string_view reason) noexcept {
  reason = reason.substr(0, kMaxReasonBytes);
  const IoLimit limit = IoLimit::After(kAbortTimeout);
  const Frame frame{.kind = FrameKind::kAbort, .count = reason.size()};
  for (const auto& peer : peers_) {
    if (peer == nullptr || !peer->usable) continue;
    std::array<iovec, 2> parts{PartOf(frame),
                               iovec{const_cast<char*>(reason.data()), reason.size()}};
    peer->out.Send(parts, limit);
    peer->out.EndSending();
    peer->usable = false;
  }
}

// ---- The server threads of peers ----

void TcpRanks::Serve(int rank) {
  pthread_setname_np(pthread_self(), fmt::format("from rank {}", rank).c_str());
  CloseReason parting = CloseReason::kNone;
  std::string why = "its connection closed";
  try {
    parting = ServeFrames(rank);
  } catch (const Error& error) {
    why = fmt::format("it sent an invalid message: {}", error.what());
  }
  if (parting == CloseReason::kNone && !leaving_) {
    local_arena_.Abort(fmt::format("{} is gone: {}", world_.Describe(rank), why));
  }
  // Holds the mutex to the end, since the destructor may continue once the mutex is released.
  const std::lock_guard lock(mutex_);
  --serving_;
  peer_closed_.notify_all();
}

// Serves frames until the connection ends; returns how it ended. Has no timeout: the destructor
// shuts the connection down.
TcpRanks::CloseReason TcpRanks::ServeFrames(int rank) {
  TcpStream& in = peers_[rank]->in;
  Frame frame;
  while (in.Receive(&frame, sizeof frame) == IoResult::kDone) {
    sent_.load(std::memory_order_acquire);
    switch (frame.kind) {
      case FrameKind::kWrite:
      case FrameKind::kWriteAndRaise:
        if (!ReceiveRanges(in, frame)) return CloseReason::kNone;
        break;
      case FrameKind::kFetch:
        if (!ServeFetch(in, frame)) return CloseReason::kNone;
        break;
      case FrameKind::kBeat:
        local_arena_.SetBeats(rank, frame.count);
        break;
      case FrameKind::kAbort:
        return ReceiveReason(in, frame) ? CloseReason::kAbort : CloseReason::kNone;
      case FrameKind::kBye:
        local_arena_.SetBeats(rank, 0);
        return CloseReason::kBye;
      default:
        throw Invalid("unknown kind {}", static_cast<uint32_t>(frame.kind));
    }
  }
  return CloseReason::kNone;
}

// Receives directly into the arena: the ranges belong to the writer until the flag is raised.
bool TcpRanks::ReceiveRanges(TcpStream& in, const Frame& frame) {
  if (frame.count > kMaxFrameRanges) throw Invalid("{} ranges in one message", frame.count);
  std::array<ByteRange, kMaxFrameRanges> table;
  if (in.Receive(table.data(), frame.count * sizeof(ByteRange)) != IoResult::kDone) return false;
  std::array<iovec, kMaxFrameRanges> parts;
  for (size_t i = 0; i < frame.count; ++i) {
    const std::span<std::byte> bytes = local_arena_.Bytes(table[i]);
    parts[i] = {bytes.data(), bytes.size()};
  }
  if (in.Receive(std::span(parts).first(frame.count)) != IoResult::kDone) return false;
  if (frame.kind == FrameKind::kWriteAndRaise) local_arena_.Raise(frame.offset, frame.value);
  return true;
}

bool TcpRanks::ServeFetch(TcpStream& in, const Frame& frame) {
  const std::span<std::byte> bytes = local_arena_.Bytes({frame.offset, frame.count});
  const Frame answer{.kind = FrameKind::kBytes, .offset = frame.offset, .count = frame.count};
  std::array<iovec, 2> parts{PartOf(answer), iovec{bytes.data(), bytes.size()}};
  return in.Send(parts) == IoResult::kDone;
}

bool TcpRanks::ReceiveReason(TcpStream& in, const Frame& frame) {
  std::string reason(std::min<uint64_t>(frame.count, kMaxReasonBytes), '\0');
  if (in.Receive(reason.data(), reason.size()) != IoResult::kDone) return false;
  local_arena_.Abort(reason);
  return true;
}

// ---- Shutdown ----

// Closing a socket with unread bytes resets the connection, which could discard data that the peer
// has not read yet. So both ends send kBye, and each reads up to the kBye of the other.
void TcpRanks::SendGoodbye() {
  const Frame frame{.kind = FrameKind::kBye};
  for (const auto& peer : peers_) {
    if (peer == nullptr || !peer->usable) continue;
    iovec part = PartOf(frame);
    peer->out.Send(std::span(&part, 1), IoLimit::After(kGoodbyeTimeout));
    peer->out.EndSending();
  }
  const auto give_up = steady_clock::now() + kGoodbyeTimeout;
  std::unique_lock lock(mutex_);
  while (serving_ > 0 && !local_arena_.aborted() && steady_clock::now() < give_up) {
    peer_closed_.wait_for(lock, 50ms);
  }
}

TcpRanks::~TcpRanks() {
  if (local_arena_.aborted()) {
    Abort(local_arena_.AbortReason());
  } else {
    SendGoodbye();
  }
  leaving_ = true;
  for (const auto& peer : peers_) {
    if (peer == nullptr || !peer->server.joinable()) continue;
    peer->in.Shutdown();
    peer->server.join();
  }
}

}  // namespace

bool ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     milliseconds timeout, const std::function<bool()>& give_up) {
  CHECK_EQ(static_cast<int>(world.listeners.size()), arena.world());
  auto ranks = std::make_unique<TcpRanks>(arena, rank, world);
  try {
    if (!ranks->Connect(listener, timeout, give_up)) {
      ranks->Abort(fmt::format("rank {} was stopped before all ranks had connected", rank));
      return false;
    }
  } catch (const Error& error) {
    ranks->Abort(fmt::format("rank {} failed: {}", rank, error.what()));
    throw;
  }
  arena.Attach(std::move(ranks));
  return true;
}

}  // namespace switchyard
