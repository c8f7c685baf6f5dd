// The process of a server: its service manager and the signals that stop it.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "comm/net/file_descriptor.h"

namespace switchyard {

// Notifications for the service manager that started this process (systemd's sd_notify(3)).

// Sends datagrams of `KEY=value` lines to the Unix socket that NOTIFY_SOCKET names. Without this
// variable all members do nothing. Owned by RunServe, for the life of the server. One thread at a
// time.
//
// The watchdog covers the main thread: it sends Alive in each turn of its loop, and the service
// manager ends the process if the messages stop. Ranks have a watchdog of their own
// (--watchdog-timeout).
class ServiceManager {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and removes them from the environment, so
  // that rank processes do not inherit them. Call from main before other threads exist. Error
  // kInvalid names a variable with an invalid value.
  ServiceManager();

  // One line for `systemctl status`. Sends it only if it differs from the previous line.
  void Status(std::string_view text);
  void Ready(std::string_view status);  // the start has ended; the watchdog begins
  // Sends a message of the watchdog, at most four per interval. The caller's loop must call it
  // more often than twice per interval.
  void Alive();
  void Stopping();

 private:
  void Send(std::string_view lines);

  FileDescriptor socket_;
  std::string address_;  // path, or a null byte and a name in the abstract namespace
  std::string status_;
  std::optional<std::chrono::microseconds> watchdog_;           // absent: no watchdog
  std::optional<std::chrono::steady_clock::time_point> alive_;  // last message of the watchdog
  bool failed_ = false;  // an error was logged; later ones are not
};

// Synchronous handling of SIGTERM and SIGINT.

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
