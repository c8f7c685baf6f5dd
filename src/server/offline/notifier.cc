#include "server/offline/notifier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace switchyard::offline {
namespace {

int NewEventDescriptor() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw Resource("cannot create an event descriptor: {}", std::strerror(errno));
  return fd;
}

uint64_t NextNumber() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Notifier::Notifier() : fd_(NewEventDescriptor()) {}
Notifier::~Notifier() { close(fd_); }

void Notifier::Push(uint64_t number) {
  const std::lock_guard lock(mutex_);
  numbers_.push_back(number);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

std::vector<uint64_t> Notifier::Take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(fd_, &count, sizeof count);
  return std::exchange(numbers_, {});
}

News::News(std::shared_ptr<Notifier> notifier)
    : notifier_(std::move(notifier)), number_(NextNumber()) {}

void News::Set() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_, true)) return;
  changed_.notify_all();
  if (notifier_) notifier_->Push(number_);
}

void News::Clear() {
  const std::lock_guard lock(mutex_);
  has_ = false;
}

bool News::Has() const {
  const std::lock_guard lock(mutex_);
  return has_;
}

bool News::Wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return has_; });
}

}  // namespace switchyard::offline
