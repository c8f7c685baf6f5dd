// Blocks signals of a thread for a while.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace switchyard {

// Blocks signals of the calling thread during its lifetime. Threads and processes that the thread
// creates meanwhile begin with the same mask. Destroyed on the same thread.
class BlockedSignals {
 public:
  enum class Faults {
    kBlocked,  // all signals are blocked
    // Signals of faults stay unblocked, for code that may run for long. The kernel kills a thread
    // that blocks its own fault, and no handler can report it.
    kUnblocked,
  };
  explicit BlockedSignals(Faults faults) {
    sigset_t set;
    sigfillset(&set);
    if (faults == Faults::kUnblocked)
      for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS})
        sigdelset(&set, fault);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace switchyard
