// Connects the profiler of a rank to the timer of its device.
#pragma once

#include <memory>

#include "kernels/device.h"
#include "profile/profiler.h"

namespace switchyard {

// While this object lives, the profiler (which may be null) uses the device's timer.
class AttachedTimer {
 public:
  AttachedTimer(profile::Profiler* profiler, kernels::Device& device)
      : profiler_(profiler), timer_(profiler ? device.MakeTimer() : nullptr) {
    if (profiler_) profiler_->SetDevice(timer_.get());
  }
  ~AttachedTimer() {
    if (profiler_) profiler_->SetDevice(nullptr);
  }
  AttachedTimer(const AttachedTimer&) = delete;
  AttachedTimer& operator=(const AttachedTimer&) = delete;

 private:
  profile::Profiler* const profiler_;
  const std::unique_ptr<kernels::DeviceTimer> timer_;
};

}  // namespace switchyard
