// Synchronous handling of SIGTERM and SIGINT.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>

namespace switchyard {

// Blocks SIGTERM and SIGINT for the process. Construct it in main, before other threads exist.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
  }
  // Returns the signal that arrives within `timeout`, or 0.
  int Wait(std::chrono::milliseconds timeout) const {
    const timespec t{.tv_sec = timeout.count() / 1000,
                     .tv_nsec = timeout.count() % 1000 * 1'000'000};
    const int signal_number = sigtimedwait(&set_, nullptr, &t);
    return signal_number > 0 ? signal_number : 0;
  }

 private:
  sigset_t set_;
};

}  // namespace switchyard
