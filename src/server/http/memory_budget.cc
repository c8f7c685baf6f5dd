#include "server/http/memory_budget.h"

#include <utility>

#include "core/error.h"

namespace switchyard::http {

bool MemoryBudget::Take(size_t bytes) {
  size_t used = used_.load();
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

MemoryCharge::MemoryCharge(MemoryCharge&& other) noexcept
    : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  if (this == &other) return *this;
  Resize(0);
  budget_ = std::move(other.budget_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool MemoryCharge::Resize(size_t bytes) {
  if (budget_ && bytes > bytes_ && !budget_->Take(bytes - bytes_)) return false;
  if (budget_ && bytes < bytes_) budget_->Return(bytes_ - bytes);
  bytes_ = bytes;
  return true;
}

void MemoryCharge::Require(size_t bytes) {
  if (Add(bytes)) return;
  if (bytes_ + bytes > budget_->limit()) {
    throw Error(ErrorKind::kTooLarge,
                fmt::format("this request needs more than {} bytes of memory", budget_->limit()),
                "send a smaller request, or start the server with a larger --http-memory-limit");
  }
  throw Error(ErrorKind::kUnavailable, "the memory for requests is exhausted (--http-memory-limit)",
              "try again later");
}

}  // namespace switchyard::http
