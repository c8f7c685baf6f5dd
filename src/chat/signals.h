// Signals and waits of a chat.
#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>

#include "comm/net/file_descriptor.h"

namespace switchyard::chat {

// Ends a wait: Ctrl-C (SIGINT), SIGTERM, SIGHUP or SIGQUIT.
struct Interrupted : std::runtime_error {
  explicit Interrupted(int signal)
      : std::runtime_error("interrupted by a signal"), signal(signal) {}
  int signal;
};

// Receives SIGTERM, SIGWINCH, and SIGINT, SIGHUP and SIGQUIT unless they are ignored, through a
// descriptor. Waits for other descriptors at the same time. Blocks these signals for the process,
// and ignores SIGPIPE.
// Construct it in main before other threads exist. Use on one thread.
class Signals {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Signals();  // throws Error kResource

  // Waits until poll() reports one of `events` (or an error) for `fd`. Returns false after
  // `timeout`; without one it waits forever. fd -1: waits for signals only. Throws Interrupted.
  bool Wait(int fd, short events, std::optional<Milliseconds> timeout = {});

  // Waits for input. Returns false if the size of the terminal changes first. Throws Interrupted.
  bool WaitUnlessResized(int fd);

  // Reads the signals that have arrived. Returns whether one of them would end a wait.
  bool Drain();

  // Unblocks the signals. For a child process before exec.
  static void Restore();

 private:
  // Whether poll() reports an event of `fd`. Returns early for SIGWINCH.
  bool Poll(int fd, short events, int milliseconds);
  void Take();  // reads pending signals

  FileDescriptor fd_;
  bool resized_ = false;
};

}  // namespace switchyard::chat
