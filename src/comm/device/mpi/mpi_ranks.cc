
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/frames.h"
#include "comm/device/mpi/mpi_library.h"
#include "comm/device/mpi/mpi_wait.h"
#include "comm/device/remote_ranks.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;
using mpi::Limit;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Writes up to this size travel in the same message as their header. A larger payload is sent in a
// message of its own, from arena to arena without a copy.
constexpr size_t kInlineBytes = 8192;
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 30;  // counts of MPI are ints
constexpr milliseconds kAbortTimeout = 1s;    // timeout for notifying all peers of an abort
constexpr milliseconds kGoodbyeTimeout = 5s;  // timeout for receiving the kBye of all peers
constexpr milliseconds kBeatsPoll = 100ms;    // between two polls for heartbeats of peers

// An MPI datatype that describes ranges of an arena.
class RangesType {
 public:
  explicit RangesType(std::span<const ByteRange> ranges) {
    std::vector<int> lengths;
    std::vector<MPI_Aint> places;
    for (const ByteRange& range : ranges) {
      for (uint64_t done = 0; done < range.bytes; done += kMaxBlockBytes) {
        lengths.push_back(static_cast<int>(std::min(kMaxBlockBytes, range.bytes - done)));
        places.push_back(static_cast<MPI_Aint>(range.offset + done));
      }
    }
    mpi::Mpi().Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(), places.data(),
                                    mpi::Mpi().byte, &type_);
    mpi::Mpi().Type_commit(&type_);
  }
  RangesType(const RangesType&) = delete;
  RangesType& operator=(const RangesType&) = delete;
  ~RangesType() {
    mpi::Mpi().Type_free(&type_);
  }  // pending operations with this type still complete
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = mpi::Mpi().datatype_null;
};

uint64_t TotalBytes(std::span<const ByteRange> ranges) {
  uint64_t total = 0;
  for (const ByteRange& range : ranges) total += range.bytes;
  return total;
}

void Append(std::vector<std::byte>& message, const void* bytes, size_t size) {
  const auto* begin = static_cast<const std::byte*>(bytes);
  message.insert(message.end(), begin, begin + size);
}

class MpiRanks : public RemoteRanks {
 public:
  MpiRanks(SharedArena& arena, int rank, std::shared_ptr<MpiFinalizeState> finalize_state)
      : local_arena_(arena, rank),
        finalize_state_(std::move(finalize_state)),
        peers_(static_cast<size_t>(arena.world())),
        progress_([this] { Progress(); }) {}
  ~MpiRanks() override;

  bool IsRemote(int rank) const override { return rank != local_arena_.rank(); }
  void Put(int rank, const std::byte* image, std::span<const ByteRange> ranges, size_t flag_offset,
           uint32_t value, milliseconds timeout) override;
  void Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
             milliseconds timeout) override;
  void Abort(std::string_view reason) noexcept override;
  void SendBeats(uint64_t beats) noexcept override;

 private:
  struct Peer {
    std::vector<std::byte> head;  // owned by MPI during a send
    bool usable = true;           // no earlier send is still pending
    uint64_t beats = 0;           // owned by MPI until beats_request is complete
    MPI_Request beats_request = mpi::Mpi().request_null;
  };

  // Stop condition of waits on the rank's thread. Each evaluation also sends a heartbeat if one is
  // due.
  std::function<bool()> BeatUntilAborted() {
    return [this] {
      if (const uint64_t beats = local_arena_.Beat(); beats != 0) SendBeats(beats);
      return local_arena_.aborted();
    };
  }
  // Limit of waits on the progress thread. Its stop condition also receives heartbeats: while a
  // stopped peer blocks a transfer, heartbeats of the other peers must still arrive.
  Limit UntilStopped() {
    return {.stop = [this] {
      ReceiveBeatsIfDue();
      return stop_ || local_arena_.aborted();
    }};
  }
  MPI_Request SendHead(int rank, const Frame& frame, const void* more, size_t size);
  void PutSome(int rank, const std::byte* image, std::span<const ByteRange> ranges, Frame frame,
               milliseconds timeout);
  // `stage`: of a fetch; null: a message is sent.
  void Complete(std::span<MPI_Request> requests, int rank, const char* stage, milliseconds timeout);

  void Progress();
  void Handle(const mpi::Message& message);
  void ReceiveBeatsIfDue();
  void ReceiveBeats();
  void ReceiveRanges(const mpi::Message& message, const Frame& frame);
  void ServeFetch(int source, const Frame& frame);
  void SendGoodbye();

  const RemoteArenaAccess local_arena_;
  const std::shared_ptr<MpiFinalizeState> finalize_state_;
  std::vector<Peer> peers_;            // [world]; used by the rank's thread
  steady_clock::time_point send_due_;  // time of the next heartbeat; used by the rank's thread
  steady_clock::time_point poll_due_;  // time of the next poll; used by the progress thread
  // Counts sends, to order accesses to the arena between threads. The rank's thread increments it
  // (release) between its accesses and the send that follows them. The progress thread loads it
  // (acquire) before the accesses that handle the peer's response.
  std::atomic<uint64_t> sent_{0};
  std::atomic<int> byes_{0};
  std::atomic<bool> stop_{false};
  std::thread progress_;  // last: uses the members above
};

// ---- The rank's thread ----

MPI_Request MpiRanks::SendHead(int rank, const Frame& frame, const void* more, size_t size) {
  std::vector<std::byte>& head = peers_[rank].head;
  head.clear();
  Append(head, &frame, sizeof frame);
  Append(head, more, size);
  sent_.fetch_add(1, std::memory_order_release);
  MPI_Request request;
  mpi::Mpi().Isend(head.data(), static_cast<int>(head.size()), mpi::Mpi().byte, rank, mpi::kHead,
                   mpi::Mpi().comm_world, &request);
  return request;
}

void MpiRanks::Complete(std::span<MPI_Request> requests, int rank, const char* stage,
                        milliseconds timeout) {
  if (mpi::Finish(requests, Limit::After(timeout, BeatUntilAborted()))) return;
  peers_[rank].usable = false;
  if (local_arena_.aborted()) local_arena_.ThrowAborted();
  throw Error(ErrorKind::kTimeout,
              fmt::format("rank {} waited {:g} s for rank {} {}", local_arena_.rank(),
                          std::chrono::duration<double>(timeout).count(), rank,
                          stage ? fmt::format("in {}", stage) : "to receive a message"));
}

void MpiRanks::Put(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                   size_t flag_offset, uint32_t value, milliseconds timeout) {
  CHECK(peers_[rank].usable);
  do {
    const auto some = ranges.first(std::min(ranges.size(), kMaxFrameRanges));
    ranges = ranges.subspan(some.size());
    PutSome(rank, image, some,
            {.kind = ranges.empty() ? FrameKind::kWriteAndRaise : FrameKind::kWrite,
             .value = value,
             .offset = flag_offset,
             .count = some.size()},
            timeout);
  } while (!ranges.empty());
}

void MpiRanks::PutSome(int rank, const std::byte* image, std::span<const ByteRange> ranges,
                       Frame frame, milliseconds timeout) {
  const uint64_t bytes = TotalBytes(ranges);
  std::vector<std::byte> more;
  Append(more, ranges.data(), ranges.size_bytes());
  if (bytes <= kInlineBytes) {
    for (const ByteRange& range : ranges) Append(more, image + range.offset, range.bytes);
  }
  std::array<MPI_Request, 2> requests{SendHead(rank, frame, more.data(), more.size()),
                                      mpi::Mpi().request_null};
  if (bytes > kInlineBytes) {
    const RangesType type(ranges);
    mpi::Mpi().Isend(image, 1, type.get(), rank, mpi::kPayload, mpi::Mpi().comm_world,
                     &requests[1]);
  }
  Complete(requests, rank, nullptr, timeout);
}

void MpiRanks::Fetch(int rank, std::byte* image, ByteRange range, const char* stage,
                     milliseconds timeout) {
  CHECK(peers_[rank].usable);
  for (uint64_t done = 0; done < range.bytes; done += kMaxBlockBytes) {
    const uint64_t n = std::min(kMaxBlockBytes, range.bytes - done);
    std::byte* place = image + range.offset + done;
    std::array<MPI_Request, 2> requests;
    mpi::Mpi().Irecv(place, static_cast<int>(n), mpi::Mpi().byte, rank, mpi::kAnswer,
                     mpi::Mpi().comm_world, &requests[0]);
    requests[1] = SendHead(
        rank, {.kind = FrameKind::kFetch, .offset = range.offset + done, .count = n}, nullptr, 0);
    Complete(requests, rank, stage, timeout);
  }
}

void MpiRanks::Abort(std::string_view reason) noexcept {
  reason = reason.substr(0, kMaxReasonBytes);
  const Limit limit = Limit::After(kAbortTimeout, [] { return false; });
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!IsRemote(rank) || !std::exchange(peers_[rank].usable, false)) continue;
    MPI_Request request = SendHead(rank, {.kind = FrameKind::kAbort, .count = reason.size()},
                                   reason.data(), reason.size());
    mpi::Finish({&request, 1}, limit);
  }
}

void MpiRanks::SendBeats(uint64_t beats) noexcept {
  const auto now = steady_clock::now();
  if (beats != 0 && now < send_due_) return;
  send_due_ = now + kBeatInterval;
  const int receivers = local_arena_.rank() == 0 ? static_cast<int>(peers_.size()) : 1;
  for (int rank = 0; rank < receivers; ++rank) {
    if (!IsRemote(rank)) continue;
    Peer& peer = peers_[rank];
    int done = 0;
    mpi::Mpi().Test(&peer.beats_request, &done, MPI_STATUS_IGNORE);
    // A heartbeat is skipped if the peer has not received the previous one. Only the final
    // heartbeat (0) waits for the previous one, for up to a second.
    const auto one_second = Limit::After(milliseconds(1000), [] { return false; });
    if (done == 0 && (beats != 0 || !mpi::Finish({&peer.beats_request, 1}, one_second))) continue;
    peer.beats = beats;
    mpi::Mpi().Isend(&peer.beats, sizeof peer.beats, mpi::Mpi().byte, rank, mpi::kBeats,
                     mpi::Mpi().comm_world, &peer.beats_request);
  }
}

// ---- The progress thread ----

void MpiRanks::Progress() {
  pthread_setname_np(pthread_self(), "mpi progress");
  for (mpi::PollBackoff patience; !stop_;) {
    const auto message = mpi::Poll(MPI_ANY_SOURCE, mpi::kHead, UntilStopped());
    ReceiveBeatsIfDue();
    if (!message) {
      patience.Wait();
      continue;
    }
    patience.Reset();
    try {
      Handle(*message);
    } catch (const Error& error) {
      local_arena_.Abort(
          fmt::format("rank {} sent an invalid message: {}", message->source, error.what()));
    }
  }
}

void MpiRanks::Handle(const mpi::Message& message) {
  sent_.load(std::memory_order_acquire);
  Frame frame;
  if (message.bytes.size() < sizeof frame)
    throw Invalid("it has {} bytes, fewer than its header", message.bytes.size());
  std::memcpy(&frame, message.bytes.data(), sizeof frame);
  const auto rest = std::span(message.bytes).subspan(sizeof frame);
  switch (frame.kind) {
    case FrameKind::kWrite:
    case FrameKind::kWriteAndRaise:
      return ReceiveRanges(message, frame);
    case FrameKind::kFetch:
      return ServeFetch(message.source, frame);
    case FrameKind::kAbort:
      return local_arena_.Abort({reinterpret_cast<const char*>(rest.data()), rest.size()});
    case FrameKind::kBye:
      ReceiveBeats();  // the peer's last heartbeats: it sends none after its kBye
      local_arena_.SetBeats(message.source, 0);
      ++byes_;
      return;
    default:
      throw Invalid("unknown kind {}", static_cast<uint32_t>(frame.kind));
  }
}

void MpiRanks::ReceiveBeatsIfDue() {
  const auto now = steady_clock::now();
  if (now < poll_due_) return;
  poll_due_ = now + kBeatsPoll;
  ReceiveBeats();
}

void MpiRanks::ReceiveBeats() {
  const Limit limit{.stop = [this] { return stop_.load(); }};
  while (const auto message = mpi::Poll(MPI_ANY_SOURCE, mpi::kBeats, limit)) {
    uint64_t beats = 0;
    if (message->bytes.size() != sizeof beats) {
      local_arena_.Abort(fmt::format("rank {} sent an invalid heartbeat of {} bytes",
                                     message->source, message->bytes.size()));
      return;
    }
    std::memcpy(&beats, message->bytes.data(), sizeof beats);
    local_arena_.SetBeats(message->source, beats);
  }
}

void MpiRanks::ReceiveRanges(const mpi::Message& message, const Frame& frame) {
  auto rest = std::span(message.bytes).subspan(sizeof frame);
  if (frame.count > kMaxFrameRanges || frame.count * sizeof(ByteRange) > rest.size()) {
    throw Invalid("its number of ranges, {}, is invalid for {} bytes", frame.count, rest.size());
  }
  std::vector<ByteRange> ranges(frame.count);
  const size_t table = frame.count * sizeof(ByteRange);
  if (table > 0) std::memcpy(ranges.data(), rest.data(), table);
  rest = rest.subspan(table);
  for (const ByteRange& range : ranges)
    local_arena_.Bytes(range);  // validates all before any write
  const uint64_t bytes = TotalBytes(ranges);
  if (bytes > kInlineBytes) {
    const RangesType type(ranges);
    MPI_Request request;
    mpi::Mpi().Irecv(local_arena_.Bytes({0, 0}).data(), 1, type.get(), message.source,
                     mpi::kPayload, mpi::Mpi().comm_world, &request);
    if (!mpi::Finish({&request, 1}, UntilStopped())) return;
  } else {
    if (rest.size() != bytes)
      throw Invalid("a frame has {} bytes, but its ranges have {}", rest.size(), bytes);
    for (const ByteRange& range : ranges) {
      if (range.bytes > 0) std::memcpy(local_arena_.Bytes(range).data(), rest.data(), range.bytes);
      rest = rest.subspan(range.bytes);
    }
  }
  if (frame.kind == FrameKind::kWriteAndRaise) local_arena_.Raise(frame.offset, frame.value);
}

void MpiRanks::ServeFetch(int source, const Frame& frame) {
  if (frame.count > kMaxBlockBytes) throw Invalid("it fetches too many bytes: {}", frame.count);
  const std::span<std::byte> bytes = local_arena_.Bytes({frame.offset, frame.count});
  MPI_Request request;
  mpi::Mpi().Isend(bytes.data(), static_cast<int>(bytes.size()), mpi::Mpi().byte, source,
                   mpi::kAnswer, mpi::Mpi().comm_world, &request);
  mpi::Finish({&request, 1}, UntilStopped());
}

// ---- Shutdown ----

void MpiRanks::SendGoodbye() {
  const auto give_up = steady_clock::now() + kGoodbyeTimeout;
  const Limit limit{give_up, [this] { return local_arena_.aborted(); }};
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (!IsRemote(rank) || !peers_[rank].usable) continue;
    if (!mpi::Finish({&peers_[rank].beats_request, 1}, limit)) return;
    MPI_Request request = SendHead(rank, {.kind = FrameKind::kBye}, nullptr, 0);
    if (!mpi::Finish({&request, 1}, limit)) return;
  }
  const int others = static_cast<int>(peers_.size()) - 1;
  for (mpi::PollBackoff patience; byes_ < others && !limit.Over();) patience.Wait();
  finalize_state_->complete = byes_ == others;
}

MpiRanks::~MpiRanks() {
  if (!local_arena_.aborted()) SendGoodbye();
  stop_ = true;
  progress_.join();
}

}  // namespace

void AttachMpiRanks(SharedArena& arena, int rank,
                    std::shared_ptr<MpiFinalizeState> finalize_state) {
  arena.Attach(std::make_unique<MpiRanks>(arena, rank, std::move(finalize_state)));
}

}  // namespace switchyard
