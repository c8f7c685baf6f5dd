// What a prefill worker sends next, and how.
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/error.h"
#include "core/log.h"
#include "server/disaggregation/kv_sender.h"

namespace switchyard {
namespace {

// Sends a message that is followed by `bytes`.
void SendBytes(const KvMessage& message, std::span<std::byte> bytes, TcpStream& stream,
               const KvConnection& peer) {
  const std::string head = EncodeKv(message);
  uint64_t size = head.size();
  iovec parts[] = {{&size, sizeof size},
                   {const_cast<char*>(head.data()), head.size()},
                   {bytes.data(), bytes.size()}};
  if (stream.Send(parts, peer.limit()) != IoResult::kDone)
    throw Error(ErrorKind::kPeer,
                fmt::format("{} did not accept the rows of the KV cache", peer.peer()));
}

// Bytes of the rows or of the state that are sent at once.
int64_t LargestPiece(const KvFormat& format) {
  int64_t most = PositionsPerPiece(format) * format.LargestPosition();
  for (const KvLayerFormat& layer : format.layers) most = std::max(most, layer.StateBytes());
  return most;
}

}  // namespace

std::optional<KvSender::Rows> KvSender::NextRows(const Room& r) const {
  const KvFormat& format = caches_->caches.format();
  const int64_t sent = std::max(r.sent, r.begin), layers = format.num_layers();
  // With the rows before that share places with the first one.
  const int64_t from = std::max(r.begin, sent - sent % format.shared_rows);
  const auto ready = [&](uint64_t pass) { return caches_->caches.LayersOf(r.group, pass); };
  // Whether passes that compute the rows before known.computed may be in flight.
  const bool in_flight = options_.job.config.mesh.pp > 1 && r.known.pass != 0;
  if (r.part.begin == from && r.part.end > from) {  // continues with further layers
    const bool ended = r.part.end <= r.known.computed && !in_flight;
    const int64_t end_layer = ended ? layers : ready(r.part.pass);
    if (end_layer <= r.part.end_layer) return std::nullopt;
    return Rows{from, r.part.end, r.part.end_layer, end_layer, r.part.pass, -1};
  }
  if (sent < r.known.computed) {
    const uint64_t pass = in_flight ? r.known.pass - 1 : 0;
    const int64_t end_layer = in_flight ? ready(pass) : layers;
    if (end_layer == 0) return std::nullopt;
    return Rows{from, r.known.computed, 0, end_layer, pass, -1};
  }
  if (sent >= r.known.end && r.known.state >= 0 && LacksStates(r))
    return Rows{sent, sent, 0, layers, 0, r.known.state};
  if (sent >= r.known.end || r.known.pass == 0) return std::nullopt;
  const int64_t end_layer = ready(r.known.pass);
  if (end_layer == 0) return std::nullopt;
  return Rows{from, r.known.end, 0, end_layer, r.known.pass, -1};
}

bool KvSender::LacksStates(const Room& r) const {
  return caches_ && caches_->caches.format().has_states() && r.begin < r.prompt_tokens &&
         !r.state_sent;
}

void KvSender::EndStep(Room& r) const {
  r.sending = false;
  if (r.step_version != r.version) return;  // the pages have changed meanwhile
  if (r.step.state >= 0) {
    r.state_sent = true;
  } else if (r.step.end_layer == caches_->caches.format().num_layers()) {
    r.sent = r.step.end;
    r.part = {};
  } else if (r.step.end <= r.known.computed || r.step.pass == r.known.pass) {
    r.part = r.step;
  }
}

// The pages of the room were those of ranks that have ended. All rows are sent again, once the
// present ranks have computed them.
void KvSender::Restart(Room& r) {
  r.sending = false;
  ++r.version;
  r.sent = 0;
  r.state_sent = false;
  r.part = {};
  r.known = {};
}

bool KvSender::AwaitsLayers(const Room& r) const {
  return r.peer && !r.sending && r.known.pass != 0 && std::max(r.sent, r.begin) < r.known.end;
}

bool KvSender::SendRows(const KvKey& key, const Room& room,
                        const std::weak_ptr<MappedCaches>& caches, const KvFormat& format,
                        std::byte* buffer, TcpStream& stream, const KvConnection& peer) const {
  const int64_t piece = PositionsPerPiece(format);
  const Rows& step = room.step;
  const auto first = [&](int64_t bytes) { return std::span(buffer, static_cast<size_t>(bytes)); };
  for (int64_t layer = step.first_layer; layer < step.end_layer; ++layer) {
    const KvLayerFormat& of_layer = format.layers[layer];
    if (step.state >= 0 && of_layer.StateBytes() > 0) {
      const std::span<std::byte> bytes = first(of_layer.StateBytes());
      const KvStateShard whole = CanonicalState(format.states, bytes);
      if (const auto mapped = caches.lock()) {
        CopyKvState(format.states, mapped->caches.State(room.group, layer, step.state), {&whole, 1},
                    mapped->mover());
      } else {
        return false;
      }
      SendBytes(KvStateHead{key, layer}, bytes, stream, peer);
    }
    if (of_layer.Bytes(1) == 0) continue;
    for (int64_t begin = step.begin; begin < step.end; begin += piece) {
      const int64_t end = std::min(begin + piece, step.end);
      const std::span<std::byte> bytes = first(of_layer.Bytes(end - begin));
      if (const auto mapped = caches.lock()) {
        CopyKvRows(of_layer, mapped->caches.Layer(room.group, layer, room.known.pages),
                   CanonicalRows(of_layer, begin, end, bytes).rows(), begin, end, mapped->mover());
      } else {
        return false;
      }
      SendBytes(KvRowsHead{key, layer, begin, end}, bytes, stream, peer);
    }
  }
  return true;
}

void KvSender::SendStep(const KvKey& key, TcpStream& stream, const Peer& peer) {
  std::shared_ptr<MappedCaches> mapped;
  Room copy;
  {
    const std::lock_guard lock(mutex_);
    const auto room = rooms_.find(key);
    if (room == rooms_.end() || room->second.peer != peer) return;
    if (room->second.step_version != room->second.version) {  // the pages have changed since
      EndStep(room->second);
      Advance(room);
      changed_.notify_all();  // Pace
      return;
    }
    mapped = caches_;
    copy = room->second;
  }
  std::shared_ptr<std::byte> buffer;
  try {
    mapped->Attach();
    buffer = MemoryForRows(options_, LargestPiece(mapped->caches.format()));
  } catch (const Error& error) {
    LOG_WARNING("{}", error.what());
    const std::lock_guard lock(mutex_);
    const auto room = rooms_.find(key);
    if (room != rooms_.end() && room->second.peer == peer) Fail(room, error.what());
    return;
  }
  const KvFormat format = mapped->caches.format();
  const std::weak_ptr<MappedCaches> weak = mapped;
  if (options_.mover) mapped.reset();  // on CPUs, the memory of ended ranks stays
  const bool sent = SendRows(key, copy, weak, format, buffer.get(), stream, *peer);
  const std::lock_guard lock(mutex_);
  const auto room = rooms_.find(key);
  if (room == rooms_.end() || room->second.peer != peer) return;
  if (sent) {
    EndStep(room->second);
  } else if (room->second.updates == copy.updates) {
    Restart(room->second);
  } else {
    room->second.sending = false;
  }
  room->second.deadline = Deadline();
  Advance(room);
  changed_.notify_all();  // Pace
}

}  // namespace switchyard
