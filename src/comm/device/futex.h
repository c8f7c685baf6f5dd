// Futex wait and wake on a 32-bit word that several processes map.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdint>

namespace switchyard {

// Sleeps while *word == seen, at most `longest`. May return early; the caller checks again. Does
// not set FUTEX_PRIVATE_FLAG: processes map the word at different addresses, so the kernel has to
// identify the word by its physical page.
inline void FutexWait(uint32_t* word, uint32_t seen, std::chrono::nanoseconds longest) {
  timespec relative{};
  relative.tv_sec = static_cast<time_t>(longest.count() / 1'000'000'000);
  relative.tv_nsec = static_cast<long>(longest.count() % 1'000'000'000);
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &relative, nullptr, 0);
}

inline void FutexWakeAll(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace switchyard
