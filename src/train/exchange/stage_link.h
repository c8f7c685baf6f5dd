// Between the stages of a pipeline: rows of hidden states go forward, their gradients back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device/symmetric_memory.h"

namespace switchyard::train {

struct StageLinkOptions {
  size_t floats = 0;  // the longest message: rows of a micro-batch · hidden
  // Messages that may wait to be received, in each direction. One is enough for the lists of
  // src/overlap; with two a stage need not wait for the next one to look.
  int places = 2;
};

// Over symmetric memory: a message is written into the receiver's arena. Messages are received in
// the order they were sent in; each wait has the memory's deadline and its message says which rank
// waits for which. Owned by a rank and used by its thread.
class StageLink {
 public:
  // Allocates, on every rank of the world in the same order. `previous`, `next`: world ranks that
  // hold the layers before and after, for the same rows; -1: none.
  StageLink(SymmetricMemory& memory, int previous, int next, const StageLinkOptions& options);
  // What that takes of each rank's arena.
  static size_t BytesPerRank(const StageLinkOptions& options);

  // Copies and returns, once there is room. Error kResource where the message is longer than was
  // planned for; kTimeout.
  void Send(std::span<const float> rows);              // to the next stage
  void SendGradient(std::span<const float> gradient);  // to the stage before
  // The next message. Errors: kTimeout; kPeer where it has another length.
  void Receive(std::span<float> rows);              // from the stage before
  void ReceiveGradient(std::span<float> gradient);  // from the next stage

 private:
  // One direction. Message n of a sender lies in place n % places of the receiver's arena; the flag
  // `arrived` counts messages there, `read` counts at the sender those that were received.
  struct Lane {
    int to = -1, from = -1;
    size_t messages = 0, arrived = 0, read = 0;
    uint32_t sent = 0, received = 0;
    const char *room = nullptr, *rows = nullptr;  // what is waited for
  };
  Lane MakeLane(int from, int to, const char* room, const char* rows);
  void Send(Lane& lane, std::span<const float> message);
  void Receive(Lane& lane, std::span<float> message);

  SymmetricMemory& memory_;
  const StageLinkOptions options_;
  const size_t stride_;
  Lane forth_, back_;
};

}  // namespace switchyard::train
