#include "train/run/gradient_sums.h"

#include <utility>

namespace switchyard::train {

GradientSums::GradientSums(std::function<void(Parameters)> sum, std::shared_ptr<SharedArena> arena)
    : sum_(std::move(sum)), arena_(std::move(arena)), thread_([this] { Run(); }) {}

GradientSums::~GradientSums() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    if (!waiting_.empty()) arena_->AbortHere("a rank ended before its gradients were summed");
  }
  changed_.notify_all();
  thread_.join();
}

void GradientSums::Start(Parameters parameters) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(parameters);
  changed_.notify_all();
}

void GradientSums::Await() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty(); });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void GradientSums::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const Parameters next = waiting_.front();
    if (error_ == nullptr) {
      lock.unlock();
      std::exception_ptr error;
      try {
        sum_(next);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
    }
    waiting_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace switchyard::train
