#include "chat/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace switchyard::chat {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t Handled() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGWINCH}) sigaddset(&set, number);
  // nohup and shells start programs with some of these ignored, which must stay so.
  for (const int number : {SIGINT, SIGHUP, SIGQUIT}) {
    struct sigaction present;
    if (sigaction(number, nullptr, &present) == 0 && present.sa_handler != SIG_IGN)
      sigaddset(&set, number);
  }
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = Handled();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() < 0) throw Resource("signalfd: {}", std::strerror(errno));
}

void Signals::Restore() {
  const sigset_t set = Handled();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

void Signals::Take() {
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGWINCH)
      resized_ = true;
    else
      throw Interrupted(static_cast<int>(info.ssi_signo));
  }
}

bool Signals::Drain() {
  bool interrupted = false;
  for (;;) {
    try {
      Take();
      return interrupted;
    } catch (const Interrupted&) {
      interrupted = true;
    }
  }
}

bool Signals::Poll(int fd, short events, int milliseconds) {
  std::array<pollfd, 2> both{{{.fd = fd_.get(), .events = POLLIN, .revents = 0},
                              {.fd = fd, .events = events, .revents = 0}}};
  const int ready = poll(both.data(), both.size(), milliseconds);
  if (ready < 0 && errno != EINTR) throw Resource("poll: {}", std::strerror(errno));
  if (ready <= 0) return false;
  if (both[0].revents != 0) Take();
  return both[1].revents != 0;
}

bool Signals::Wait(int fd, short events, std::optional<Milliseconds> timeout) {
  const Clock::time_point deadline = Clock::now() + timeout.value_or(Milliseconds(0));
  while (true) {
    int wait = -1;
    if (timeout) {
      const int64_t left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
      wait = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    if (Poll(fd, events, wait)) return true;
    if (timeout && Clock::now() >= deadline) return false;
  }
}

bool Signals::WaitUnlessResized(int fd) {
  while (true) {
    if (Poll(fd, POLLIN, -1)) return true;
    if (std::exchange(resized_, false)) return false;
  }
}

}  // namespace switchyard::chat
