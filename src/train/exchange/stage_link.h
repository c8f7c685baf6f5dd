// Point-to-point link between pipeline stages: hidden states forward, their gradients backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/device/symmetric_memory.h"

namespace switchyard::train {

struct StageLinkOptions {
  size_t floats = 0;  // maximum message size: rows of a micro-batch · hidden
  // Message buffers in each direction. One is enough for the schedules of src/schedule. With two, a
  // stage can send before the receiver has read the previous message.
  int places = 2;
};

// Over symmetric memory: a message is written into the receiver's arena. Messages are received in
// send order. Each wait has the memory's timeout, and its error names the waiting rank and the
// rank that it waits for. Owned by a rank; used by the rank's thread only.
class StageLink {
 public:
  // Allocates symmetric memory, so every rank of the world must construct its objects in the same
  // order. `previous`, `next`: the world ranks of the previous and the next stage that process the
  // same rows; -1: no such stage.
  StageLink(SymmetricMemory& memory, int previous, int next, const StageLinkOptions& options);
  // Bytes that the link allocates in each rank's arena.
  static size_t BytesPerRank(const StageLinkOptions& options);

  // Copies the message and returns; blocks while all buffers are full. Errors: kResource if
  // the message exceeds `floats`; kTimeout.
  void Send(std::span<const float> rows);              // to the next stage
  void SendGradient(std::span<const float> gradient);  // to the previous stage
  // Receives the next message. Errors: kTimeout; kPeer if the message has another length.
  void Receive(std::span<float> rows);              // from the previous stage
  void ReceiveGradient(std::span<float> gradient);  // from the next stage

 private:
  // One direction. Message n of a sender is in buffer n % places of the receiver's arena. The flag
  // `arrived` at the receiver counts messages sent; `read` at the sender counts messages received.
  struct Lane {
    int to = -1, from = -1;
    size_t messages = 0, arrived = 0, read = 0;
    uint32_t sent = 0, received = 0;
    // Descriptions of the two waits, for error messages.
    const char *room = nullptr, *rows = nullptr;
  };
  Lane MakeLane(int from, int to, const char* room, const char* rows);
  void Send(Lane& lane, std::span<const float> message);
  void Receive(Lane& lane, std::span<float> message);

  SymmetricMemory& memory_;
  const StageLinkOptions options_;
  const size_t stride_;
  Lane forward_, backward_;
};

}  // namespace switchyard::train
