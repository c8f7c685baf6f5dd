#include "train/exchange/stage_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/error.h"

namespace switchyard::train {
namespace {

constexpr size_t kLine = 64;

// A message is a cache line with its length, followed by its floats.
size_t Stride(const StageLinkOptions& options) {
  return kLine + (options.floats * sizeof(float) + kLine - 1) / kLine * kLine;
}

}  // namespace

StageLink::StageLink(SymmetricMemory& memory, int previous, int next,
                     const StageLinkOptions& options)
    : memory_(memory),
      options_(options),
      stride_(Stride(options)),
      forward_(MakeLane(previous, next, "pipeline: receive buffer of the next stage",
                        "pipeline: rows of the previous stage")),
      backward_(MakeLane(next, previous, "pipeline: gradient buffer of the previous stage",
                         "pipeline: gradient of the next stage")) {
  CHECK_GE(options.places, 1);
}

size_t StageLink::BytesPerRank(const StageLinkOptions& options) {
  return 2 * (Stride(options) * static_cast<size_t>(options.places) + 2 * kLine);
}

StageLink::Lane StageLink::MakeLane(int from, int to, const char* room, const char* rows) {
  Lane lane{.to = to, .from = from, .room = room, .rows = rows};
  lane.messages = memory_.Allocate(stride_ * static_cast<size_t>(options_.places));
  lane.arrived = memory_.Allocate(kLine);
  lane.read = memory_.Allocate(kLine);
  return lane;
}

void StageLink::Send(std::span<const float> rows) { Send(forward_, rows); }
void StageLink::SendGradient(std::span<const float> gradient) { Send(backward_, gradient); }
void StageLink::Receive(std::span<float> rows) { Receive(forward_, rows); }
void StageLink::ReceiveGradient(std::span<float> gradient) { Receive(backward_, gradient); }

void StageLink::Send(Lane& lane, std::span<const float> message) {
  CHECK_GE(lane.to, 0);
  if (message.size() > options_.floats) {
    throw Resource(
        "rank {}: {} floats for the pipeline stage of rank {} exceed the link's limit of {}",
        memory_.rank(), message.size(), lane.to, options_.floats);
  }
  const auto places = static_cast<uint32_t>(options_.places);
  const size_t at = lane.messages + lane.sent % places * stride_;
  ++lane.sent;
  if (lane.sent > places) memory_.Wait(lane.read, lane.sent - places, lane.to, lane.room);
  std::byte* out = memory_.At(lane.to, at);
  const uint64_t count = message.size();
  std::memcpy(out, &count, sizeof count);
  if (count > 0) std::memcpy(out + kLine, message.data(), message.size_bytes());
  memory_.Wrote(lane.to, at, kLine + message.size_bytes());
  memory_.Raise(lane.to, lane.arrived, lane.sent);
}

void StageLink::Receive(Lane& lane, std::span<float> message) {
  CHECK_GE(lane.from, 0);
  const auto places = static_cast<uint32_t>(options_.places);
  const size_t at = lane.messages + lane.received % places * stride_;
  ++lane.received;
  memory_.Wait(lane.arrived, lane.received, lane.from, lane.rows);
  const std::byte* in = memory_.Local(at);
  uint64_t count = 0;
  std::memcpy(&count, in, sizeof count);
  if (count != message.size()) {
    throw Error(ErrorKind::kPeer,
                fmt::format("rank {}: {} from rank {} are {} floats, want {}", memory_.rank(),
                            lane.rows, lane.from, count, message.size()),
                "all stages of a pipeline must process the same rows");
  }
  if (count > 0) std::memcpy(message.data(), in + kLine, message.size_bytes());
  memory_.Raise(lane.from, lane.read, lane.received);
}

}  // namespace switchyard::train
