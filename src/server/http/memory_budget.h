// One limit for the memory that clients make the front hold: bodies, what is parsed out of them,
// results that are gathered, and answers that wait for a slow reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace switchyard::http {

// Counts bytes against a limit. Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}

  // False, with nothing taken, where `bytes` more would exceed the limit.
  bool Take(size_t bytes);
  void Return(size_t bytes) { used_ -= bytes; }

  size_t limit() const { return limit_; }
  size_t used() const { return used_; }

 private:
  const size_t limit_;
  std::atomic<size_t> used_{0};
};

// What one owner holds of a budget; returned when it is destroyed. One thread at a time. Without a
// budget every size is granted.
class MemoryCharge {
 public:
  explicit MemoryCharge(std::shared_ptr<MemoryBudget> budget = nullptr)
      : budget_(std::move(budget)) {}
  ~MemoryCharge() { Resize(0); }
  MemoryCharge(MemoryCharge&& other) noexcept;
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;

  // To `bytes` in all. False, with the old size kept, where the budget does not have them; a
  // smaller size is always granted.
  bool Resize(size_t bytes);
  bool Add(size_t bytes) { return Resize(bytes_ + bytes); }

  // As Add, but throws: Error kTooLarge where this charge alone would exceed the limit, else
  // kUnavailable.
  void Require(size_t bytes);

  size_t bytes() const { return bytes_; }
  const std::shared_ptr<MemoryBudget>& budget() const { return budget_; }

 private:
  std::shared_ptr<MemoryBudget> budget_;
  size_t bytes_ = 0;
};

// An eighth of the memory that this process may use (of the machine, or of its cgroup), at least
// 256 MiB.
size_t DefaultHttpMemory();

}  // namespace switchyard::http
