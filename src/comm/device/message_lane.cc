#include "comm/device/message_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kLine = 64;

// A part is a cache line with its header, followed by its bytes.
size_t Stride(const MessageLaneOptions& options) {
  return kLine + (options.part_bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

MessageLane::MessageLane(SymmetricMemory& memory, int from, int to,
                         const MessageLaneOptions& options, const std::string& name)
    : memory_(memory),
      from_(from),
      to_(to),
      options_(options),
      name_("pipeline: " + name),
      room_(fmt::format("pipeline: {}, buffer of the receiver", name)),
      parts_(memory.Allocate(Stride(options) * static_cast<size_t>(options.places))),
      arrived_(memory.Allocate(kLine)),
      read_(memory.Allocate(kLine)) {
  CHECK_GT(options.part_bytes, 0u);
  CHECK_GE(options.places, 1);
}

size_t MessageLane::BytesPerRank(const MessageLaneOptions& options) {
  return Stride(options) * static_cast<size_t>(options.places) + 2 * kLine;
}

size_t MessageLane::PlaceOf(uint64_t part) const {
  return parts_ + part % static_cast<uint64_t>(options_.places) * Stride(options_);
}

void MessageLane::Wait(size_t flag, uint32_t value, int peer, const std::string& stage,
                       const std::function<void()>& action) {
  if (clock_ == nullptr) return memory_.Wait(flag, value, peer, stage.c_str());
  clock_->Wait(flag, value, peer, stage.c_str(), action);
}

// For the first parts, the count to wait for is negative, so they do not wait.
void MessageLane::AwaitPlace() {
  const auto read = static_cast<uint32_t>(sent_ - static_cast<uint64_t>(options_.places));
  Wait(read_, read, to_, room_, while_full_);
}

void MessageLane::Send(std::span<const std::byte> message) {
  CHECK_GE(to_, 0);
  const Header header{.length = message.size(), .tag = tag_};
  size_t done = 0;
  do {
    const size_t bytes = std::min(options_.part_bytes, message.size() - done);
    const size_t at = PlaceOf(sent_);
    ++sent_;
    AwaitPlace();
    std::byte* out = memory_.At(to_, at);
    std::memcpy(out, &header, sizeof header);
    if (bytes > 0) std::memcpy(out + kLine, message.data() + done, bytes);
    memory_.Wrote(to_, at, kLine + bytes);
    memory_.Raise(to_, arrived_, static_cast<uint32_t>(sent_));
    done += bytes;
  } while (done < message.size());
  if (clock_ != nullptr) clock_->Advance();
}

MessageLane::Header MessageLane::AwaitPart(bool idle) {
  CHECK_GE(from_, 0);
  const auto arrived = static_cast<uint32_t>(received_ + 1);
  if (idle) {
    memory_.Wait(arrived_, arrived, from_, name_.c_str(), /*idle=*/true);
  } else {
    Wait(arrived_, arrived, from_, name_);
  }
  Header header;
  std::memcpy(&header, memory_.Local(PlaceOf(received_)), sizeof header);
  return header;
}

void MessageLane::TakePart(std::span<std::byte> to) {
  if (!to.empty()) std::memcpy(to.data(), memory_.Local(PlaceOf(received_)) + kLine, to.size());
  ++received_;
  memory_.Raise(from_, read_, static_cast<uint32_t>(received_));
  if (clock_ != nullptr) clock_->Advance();
}

std::string MessageLane::Receive(bool idle) {
  std::string message(AwaitPart(idle).length, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(message));
  size_t done = 0;
  do {
    if (done > 0) AwaitPart(/*idle=*/false);
    const size_t part = std::min(options_.part_bytes, bytes.size() - done);
    TakePart(bytes.subspan(done, part));
    done += part;
  } while (done < bytes.size());
  return message;
}

void MessageLane::Check(const Header& header, size_t length) const {
  constexpr const char* kHint = "all stages of a pipeline must process the same batches";
  if (header.length != length)
    throw Error(ErrorKind::kPeer,
                fmt::format("rank {}: {} from rank {} have {} bytes, want {}", memory_.rank(),
                            name_, from_, header.length, length),
                kHint);
  if (header.tag != tag_)
    throw Error(ErrorKind::kPeer,
                fmt::format("rank {}: {} from rank {} belong to another batch ({:x}, want {:x})",
                            memory_.rank(), name_, from_, header.tag, tag_),
                kHint);
}

void MessageLane::Receive(std::span<std::byte> message) {
  size_t done = 0;
  do {
    Check(AwaitPart(/*idle=*/false), message.size());
    const size_t part = std::min(options_.part_bytes, message.size() - done);
    TakePart(message.subspan(done, part));
    done += part;
  } while (done < message.size());
}

bool MessageLane::Arrived() const {
  return memory_.Reached(arrived_, static_cast<uint32_t>(received_ + 1));
}

}  // namespace switchyard
