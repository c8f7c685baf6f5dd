// Polling of MPI operations with a deadline. Internal to comm/device/mpi.
#pragma once

#include <sched.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "comm/device/mpi/mpi_library.h"

namespace switchyard::mpi {

// Tags of messages between ranks.
enum Tag : int { kHead = 1, kPayload, kAnswer, kBeats, kStatement, kDecision };

// Backoff between two polls: first yields the core, then sleeps, since ranks may outnumber cores
// and MPI wakes no thread.
class PollBackoff {
 public:
  void Wait() {
    const auto waited = Clock::now() - start_;
    if (waited < std::chrono::milliseconds(1)) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(waited < std::chrono::milliseconds(200)
                                      ? std::chrono::microseconds(20)
                                      : std::chrono::microseconds(500));
    }
  }
  void Reset() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Limit {
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  std::function<bool()> stop = [] { return false; };

  bool Over() const { return stop() || std::chrono::steady_clock::now() >= until; }
  static Limit After(std::chrono::milliseconds timeout, std::function<bool()> stop) {
    return {std::chrono::steady_clock::now() + timeout, std::move(stop)};
  }
};

// Whether all requests completed within the limit. MPI owns their buffers until they do.
inline bool Finish(std::span<MPI_Request> requests, const Limit& limit) {
  for (PollBackoff patience;; patience.Wait()) {
    int done = 0;
    Mpi().Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done != 0) return true;
    if (limit.Over()) return false;
  }
}

struct Message {
  int source = 0;
  std::vector<std::byte> bytes;
};

// Returns the next received message. Nullopt if there is none, or if its bytes do not arrive within
// the limit, since its sender may be stopped.
inline std::optional<Message> Poll(int source, Tag tag, const Limit& limit) {
  int there = 0;
  MPI_Message handle;
  MPI_Status status;
  Mpi().Improbe(source, tag, Mpi().comm_world, &there, &handle, &status);
  if (there == 0) return std::nullopt;
  int size = 0;
  Mpi().Get_count(&status, Mpi().byte, &size);
  auto bytes = std::make_unique<std::vector<std::byte>>(size);
  MPI_Request request;
  Mpi().Imrecv(bytes->data(), size, Mpi().byte, &handle, &request);
  if (!Finish({&request, 1}, limit)) {
    static_cast<void>(bytes.release());  // not freed, since MPI may still write to it
    return std::nullopt;
  }
  return Message{.source = status.MPI_SOURCE, .bytes = std::move(*bytes)};
}

}  // namespace switchyard::mpi
