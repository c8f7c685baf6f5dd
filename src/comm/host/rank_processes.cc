#include "comm/host/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/host/rank_spec.h"
#include "comm/host/silence.h"
#include "comm/host/spawn.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Reaps one process that has ended, and returns how it ended.
RankExit Reap(int rank, pid_t pid) {
  RankExit exit{.rank = rank, .pid = pid};
  int status = 0;
  pid_t reaped = -1;
  while ((reaped = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
  }
  CHECK_EQ(reaped, pid);
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  return exit;
}

// Whether the process is stopped by a signal. A process that a debugger has stopped is not.
bool IsStopped(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t n = file.get() < 0 ? -1 : read(file.get(), text.data(), text.size());
  if (n <= 0) return false;
  const std::string_view stat(text.data(), static_cast<size_t>(n));
  const size_t name_end = stat.rfind(')');  // the state follows the name
  return name_end != std::string_view::npos && stat.substr(name_end).starts_with(") T");
}

void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

bool RankExit::ByItself() const {
  switch (signal) {
    case 0:
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return true;
    default:
      return false;
  }
}

std::string RankExit::Describe() const {
  if (stopped_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) was stopped for {:.1f} s and was killed "
        "(--rank-stall-timeout)",
        rank, pid, stopped_seconds);
  }
  if (silent_seconds > 0) {
    return fmt::format(
        "rank {} (pid {}) sent no heartbeat for {:.0f} s and was killed (--watchdog-timeout)", rank,
        pid, silent_seconds);
  }
  if (signal == 0) return fmt::format("rank {} (pid {}) ended with exit code {}", rank, pid, code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("rank {} (pid {}) was killed by signal {} (SIG{})", rank, pid, signal,
                     name != nullptr ? name : "?");
}

// The watcher's thread also starts the processes. The kernel sends a child its parent-death signal
// when the thread that forked the child ends. So this thread has to live as long as the object.
struct RankProcesses::Impl {
  struct Child {
    int rank = -1;
    pid_t pid = -1;
    FileDescriptor pidfd;
    bool ended = false;
    double silent_seconds = 0;  // seconds without a heartbeat when the watchdog killed it
    Silence silence{2 * kHeartbeatSampleTime};
    double stopped_seconds = 0;  // seconds stopped when it was killed for being stopped
    Silence stopped{2 * kHeartbeatSampleTime};
  };

  std::shared_ptr<SharedArena> arena;
  Options options;
  OnExit on_exit;

  // Guards the members below. Children are reaped with the mutex held, so that a kill under the
  // mutex cannot hit a reused pid.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Child> children;  // by rank
  std::vector<RankExit> exits;  // in order of exit
  bool end_expected = false;
  bool killed = false;

  std::jthread watcher;  // last: joined first

  void SpawnAll(const std::vector<std::string>& environment);
  void Watch();
  void SampleHeartbeats();
  void KillStopped(Child& child, Silence::Clock::time_point now);  // requires the mutex
  void OnEnd(size_t child);
  int first_rank() const { return options.network ? options.network->first_rank() : 0; }
  int count() const {
    return options.network ? options.network->world.ranks_per_node : options.world;
  }
  void Kill();  // requires the mutex
  bool AllEnded() const { return exits.size() == children.size(); }
};

void RankProcesses::Impl::SpawnAll(const std::vector<std::string>& environment) {
  for (int i = 0; i < count(); ++i) {
    const int rank = first_rank() + i;
    RankSpec rank_spec{.rank = rank,
                       .world = options.world,
                       .spec = options.spec,
                       .control_endpoint = options.control_endpoint};
    std::vector<int> inherited{arena->fd()};
    if (options.network) {
      rank_spec.network = options.network->world;
      inherited.push_back(options.network->listeners[i].socket().get());
    }
    const FileDescriptor spec(WriteRankSpec(rank_spec, getpid()));
    inherited.insert(inherited.begin(), spec.get());
    std::vector<std::string> variables = environment;
    variables.push_back(RankFdsEntry(inherited));
    const pid_t pid = SpawnSelf({"switchyard", "rank"}, variables, inherited);
    const std::lock_guard lock(mutex);
    children.push_back({.rank = rank, .pid = pid});
    children.back().pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (children.back().pidfd.get() < 0) {
      throw Resource("cannot watch rank {}: {}", rank, strerror(errno));
    }
  }
  options.network.reset();  // closes the listeners, which the ranks have inherited
}

// Ends when every child has ended. The destructor kills the children first.
void RankProcesses::Impl::Watch() {
  for (;;) {
    std::vector<pollfd> fds;
    std::vector<size_t> watched;
    {
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < children.size(); ++i) {
        if (children[i].ended) continue;
        fds.push_back({children[i].pidfd.get(), POLLIN, 0});
        watched.push_back(i);
      }
    }
    if (fds.empty()) return;
    poll(fds.data(), fds.size(), static_cast<int>(kHeartbeatSampleTime.count()));
    SampleHeartbeats();
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) OnEnd(watched[i]);
    }
  }
}

void RankProcesses::Impl::SampleHeartbeats() {
  arena->BeatAsParent();
  const auto now = Silence::Clock::now();
  const std::lock_guard lock(mutex);
  for (Child& child : children) {
    if (child.ended) continue;
    const uint64_t beats = arena->beats(child.rank);
    child.silence.Sample(beats, now);
    const auto silent = child.silence.length();
    if (beats == 0 || silent.count() > 0) {
      KillStopped(child, now);
    } else {
      child.stopped.Sample(0, now);
    }
    if (options.watchdog_timeout.count() == 0 || silent < options.watchdog_timeout) continue;
    if (child.silent_seconds > 0) continue;  // killed already
    child.silent_seconds = std::chrono::duration<double>(silent).count();
    kill(child.pid, SIGKILL);
  }
}

// A rank in a long computation has no heartbeats either. So `stall_timeout` ends only processes
// that are stopped.
void RankProcesses::Impl::KillStopped(Child& child, Silence::Clock::time_point now) {
  if (options.stall_timeout.count() == 0 || child.stopped_seconds > 0) return;
  child.stopped.Sample(IsStopped(child.pid) ? 1 : 0, now);
  const auto stopped = child.stopped.length();
  if (stopped < options.stall_timeout) return;
  child.stopped_seconds = std::chrono::duration<double>(stopped).count();
  kill(child.pid, SIGKILL);
}

void RankProcesses::Impl::OnEnd(size_t child) {
  RankExit exit;
  bool is_news = false;
  {
    const std::lock_guard lock(mutex);
    exit = Reap(children[child].rank, children[child].pid);
    exit.silent_seconds = children[child].silent_seconds;
    exit.stopped_seconds = children[child].stopped_seconds;
    exit.reason = arena->AbortReason();
    children[child].ended = true;
    const bool is_clean = exit.signal == 0 && exit.code == 0;
    is_news = !killed && !(end_expected && is_clean);
  }
  if (is_news) {
    arena->Abort(exit.Describe());
    if (on_exit) on_exit(exit);
  }
  // Notifies after the callback, because a waiter may rely on its return.
  const std::lock_guard lock(mutex);
  exits.push_back(exit);
  changed.notify_all();
}

void RankProcesses::Impl::Kill() {
  killed = true;
  for (const Child& child : children) {
    if (!child.ended) kill(child.pid, SIGKILL);
  }
}

RankProcesses::RankProcesses(std::shared_ptr<SharedArena> arena, Options options, OnExit on_exit)
    : impl_(std::make_unique<Impl>()) {
  CHECK_EQ(options.world, arena->world());
  impl_->arena = std::move(arena);
  impl_->options = std::move(options);
  impl_->on_exit = std::move(on_exit);
  std::promise<void> spawned;
  auto outcome = spawned.get_future();
  // The thread owns the promise, since it may still be inside set_value when the future is ready.
  impl_->watcher = std::jthread(
      [&my = *impl_, spawned = std::move(spawned), environment = CopyEnvironment()]() mutable {
        BlockAllSignals();  // signal handlers run on the front's threads only
        pthread_setname_np(pthread_self(), "rank watcher");
        std::exception_ptr failure;
        try {
          my.SpawnAll(environment);
        } catch (...) {
          failure = std::current_exception();
          const std::lock_guard lock(my.mutex);
          my.Kill();
        }
        if (failure == nullptr) {
          spawned.set_value();
          my.Watch();
        } else {
          for (auto& child : my.children) Reap(-1, child.pid);
          spawned.set_exception(failure);
        }
      });
  outcome.get();
}

RankProcesses::~RankProcesses() {
  KillAll();
  impl_->watcher.join();
}

bool RankProcesses::WaitJoined() {
  const auto give_up = std::chrono::steady_clock::now() + impl_->options.join_timeout;
  std::unique_lock lock(impl_->mutex);
  std::vector<int> missing;
  for (;;) {
    if (!impl_->exits.empty()) {
      throw Error(ErrorKind::kPeer,
                  fmt::format("{} before all ranks had joined", impl_->exits[0].Describe()));
    }
    missing.clear();
    for (const auto& child : impl_->children) {
      if (!impl_->arena->Joined(child.rank)) missing.push_back(child.rank);
    }
    if (missing.empty()) return true;
    if (impl_->options.give_up && impl_->options.give_up()) return false;
    if (std::chrono::steady_clock::now() >= give_up) break;
    // A rank joins by a write to shared memory, which does not notify `changed`.
    impl_->changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  throw Error(ErrorKind::kTimeout,
              fmt::format("these ranks did not join within {:g} s: {}",
                          std::chrono::duration<double>(impl_->options.join_timeout).count(),
                          Joined(missing, ", ")),
              "--dist-timeout sets how long to wait");
}

RankSilence RankProcesses::LongestSilence() const {
  RankSilence longest;
  const std::lock_guard lock(impl_->mutex);
  for (const auto& child : impl_->children) {
    if (child.ended || child.silence.length() <= longest.length) continue;
    longest = {.rank = child.rank, .pid = child.pid, .length = child.silence.length()};
  }
  return longest;
}

void RankProcesses::ExpectEnd() {
  const std::lock_guard lock(impl_->mutex);
  impl_->end_expected = true;
}

bool RankProcesses::WaitEnded(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->end_expected = true;
  const auto all_ended = [&] { return impl_->AllEnded(); };
  if (impl_->changed.wait_for(lock, timeout, all_ended)) return !impl_->killed;
  impl_->Kill();
  impl_->changed.wait(lock, all_ended);
  return false;
}

void RankProcesses::KillAll() {
  const std::lock_guard lock(impl_->mutex);
  impl_->Kill();
}

}  // namespace switchyard
