// Wakes an event loop or a thread when a call has news.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace switchyard::offline {

// The numbers of calls that have new results. An event loop polls the descriptor. Thread-safe.
class Notifier {
 public:
  Notifier();  // Error kResource if there is no descriptor left
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  int fd() const { return fd_; }  // readable while Take has numbers to return
  void Push(uint64_t number);
  std::vector<uint64_t> Take();

 private:
  const int fd_;
  std::mutex mutex_;
  std::vector<uint64_t> numbers_;
};

// Whether a call has new results. Set by the engine's reader thread, cleared by the caller.
// Thread-safe.
class News {
 public:
  // `notifier` may be null.
  explicit News(std::shared_ptr<Notifier> notifier);

  uint64_t number() const { return number_; }  // unique in this process
  void Set();
  void Clear();
  bool Has() const;
  // Waits until there are new results. Returns whether there are any.
  bool Wait(std::chrono::milliseconds timeout);

 private:
  const std::shared_ptr<Notifier> notifier_;
  const uint64_t number_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ = false;
};

}  // namespace switchyard::offline
