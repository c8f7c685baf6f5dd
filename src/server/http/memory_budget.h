// One limit for the memory that the front holds for clients: request bodies, data parsed from them,
// accumulated results, and responses that wait for slow clients.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace switchyard::http {

// Counts bytes against a limit. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}

  // Returns false, and takes nothing, if `bytes` more would exceed the limit.
  bool Take(size_t bytes);
  void Return(size_t bytes) { used_ -= bytes; }

  size_t limit() const { return limit_; }
  size_t used() const { return used_; }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// The bytes that one owner has taken from a budget. The destructor gives these bytes back. Without
// a budget, there is no limit. Not thread-safe.
class MemoryCharge {
 public:
  explicit MemoryCharge(std::shared_ptr<MemoryBudget> budget = nullptr)
      : budget_(std::move(budget)) {}
  ~MemoryCharge() { Resize(0); }
  MemoryCharge(MemoryCharge&& other) noexcept;
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;

  // Changes the total to `bytes`. Returns false and keeps the old size if the budget is exceeded. A
  // call with a smaller size always succeeds.
  bool Resize(size_t bytes);
  bool Add(size_t bytes) { return Resize(bytes_ + bytes); }

  // Like Add, but throws instead of returning false: kTooLarge if this charge alone would exceed
  // the limit, otherwise kUnavailable.
  void Require(size_t bytes);

  size_t bytes() const { return bytes_; }
  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace switchyard::http
