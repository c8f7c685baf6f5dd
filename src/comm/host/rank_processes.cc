#include "comm/host/rank_processes.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/host/rank_processes_impl.h"
#include "comm/host/spawn.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

RankExit Reap(RankExit exit) {
  const pid_t pid = exit.pid;
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

FileDescriptor OpenPidfd(pid_t pid, const std::string& what) {
  FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.get() >= 0) return pidfd;
  const int error = errno;
  kill(pid, SIGKILL);
  Reap({.pid = pid});
  throw Resource("cannot watch {}: {}", what, strerror(error));
}

// Starts a process that reads `rank_spec`. `inherited`: its descriptors after that of the spec.
pid_t RankProcesses::Impl::SpawnProcess(const RankSpec& rank_spec, std::vector<int> inherited) {
  const FileDescriptor spec(WriteRankSpec(rank_spec, getpid()));
  inherited.insert(inherited.begin(), spec.get());
  std::vector<std::string> variables = environment;
  variables.push_back(RankFdsEntry(inherited));
  return SpawnSelf({"switchyard", options.command}, variables, inherited);
}

RankProcesses::Impl::Child RankProcesses::Impl::Spawn(int i, uint32_t last_epoch) {
  const int rank = first_rank() + i;
  RankSpec rank_spec{.rank = rank,
                     .world = options.world,
                     .spec = options.spec,
                     .control_endpoint = options.control_endpoint,
                     .last_epoch = last_epoch};
  std::vector<int> inherited{arena->fd()};
  if (options.network) {
    rank_spec.network = options.network->world;
    inherited.push_back(options.network->listeners[i].socket().get());
  }
  if (!kept.empty()) {
    for (const int fd : kept[i].fds()) inherited.push_back(fd);
  }
  Child child;
  child.exit = {.rank = rank, .pid = SpawnProcess(rank_spec, std::move(inherited))};
  child.pidfd = OpenPidfd(child.pid(), fmt::format("rank {}", rank));
  return child;
}

void RankProcesses::Impl::SpawnAll() {
  for (int i = 0; options.keeps_descriptors && i < count(); ++i)
    kept.push_back(KeptDescriptors::Create());
  for (int i = 0; i < count(); ++i) {
    Child child = Spawn(i);
    const std::lock_guard lock(mutex);
    children.push_back(std::move(child));
  }
  options.network.reset();  // closes the listeners, which the ranks have inherited
}

void RankProcesses::Impl::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake.get(), &one, sizeof one);
}

// Returns when every child has ended and, with epochs, the object is being destroyed. The
// destructor first kills the children.
void RankProcesses::Impl::Watch() {
  for (;;) {
    std::vector<pollfd> fds{{wake.get(), POLLIN, 0}};
    std::vector<size_t> watched;
    bool stays = false;
    {
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < children.size(); ++i) {
        if (children[i].ended) continue;
        fds.push_back({children[i].pidfd.get(), POLLIN, 0});
        watched.push_back(i);
      }
      stays = (options.epochs && !closing) || (spares && !spares->empty()) || !early.empty();
      // Last, because `watched` has no entries of them.
      if (spares) spares->AddTo(&fds);
      for (const Child& child : early) fds.push_back({child.pidfd.get(), POLLIN, 0});
    }
    if (watched.empty() && !stays) return;
    poll(fds.data(), fds.size(), static_cast<int>(kHeartbeatSampleTime.count()));
    SampleHeartbeats();
    for (size_t i = 0; i < watched.size(); ++i) {
      if (fds[i + 1].revents != 0) OnEnd(watched[i]);
    }
    StepSpares();
    StepEarly();
    if (fds[0].revents == 0) continue;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake.get(), &count, sizeof count);
    BeginEpoch();
  }
}

void RankProcesses::Impl::SampleHeartbeats() {
  arena->BeatAsParent();
  const auto now = Silence::Clock::now();
  const std::lock_guard lock(mutex);
  for (Child& child : children) {
    if (!child.ended && child.hang.Sample(*arena, options, now, &child.exit))
      kill(child.pid(), SIGKILL);
  }
}

void RankProcesses::Impl::OnEnd(size_t child) {
  RankExit exit;
  bool is_news = false;
  {
    const std::lock_guard lock(mutex);
    exit = Reap(children[child].exit);
    exit.reason = arena->AbortReason();
    exit.absent = !arena->Active(exit.rank);
    children[child].exit = exit;
    children[child].ended = true;
    if (spares) spares->Ended(exit.pid);
    const bool is_clean = exit.signal == 0 && exit.code == 0;
    is_news = !killed && !children[child].retired && !(end_expected && is_clean);
  }
  if (is_news) {
    arena->Abort(exit.Describe());
    if (on_exit) on_exit(exit);
  }
  {
    // Notifies after the callback, because a waiter may rely on the callback having returned.
    const std::lock_guard lock(mutex);
    exits.push_back(exit);
    children[child].reported = true;
    changed.notify_all();
  }
  if (is_news) SpawnEarly(static_cast<int>(child));
}

void RankProcesses::Impl::Kill() {
  killed = all_killed = true;
  for (Child& child : children) {
    if (!child.ended) Retire(child);
  }
  if (spares) spares->KillAll();
  RetireEarly();
}

void RankProcesses::Impl::Retire(Child& child) {
  child.retired = true;
  kill(child.pid(), SIGKILL);
}

RankProcesses::RankProcesses(std::shared_ptr<SharedArena> arena, Options options, OnExit on_exit)
    : impl_(std::make_unique<Impl>()) {
  CHECK_EQ(options.world, arena->world());
  impl_->arena = std::move(arena);
  impl_->options = std::move(options);
  impl_->on_exit = std::move(on_exit);
  impl_->environment = CopyEnvironment();
  impl_->wake = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (impl_->wake.get() < 0)
    throw Resource("cannot create an event descriptor: {}", strerror(errno));
  CHECK(impl_->options.epochs || !impl_->options.keeps_descriptors);
  if (impl_->options.epochs) {
    impl_->arena->EnableEpochs();
    impl_->spares.emplace(impl_->arena, impl_->options);
  }
  std::promise<void> spawned;
  auto outcome = spawned.get_future();
  // The thread owns the promise, since it may still be inside set_value when the future is ready.
  impl_->watcher = std::jthread([&my = *impl_, spawned = std::move(spawned)]() mutable {
    BlockAllSignals();  // signal handlers run on the front's threads only
    pthread_setname_np(pthread_self(), "rank watcher");
    std::exception_ptr failure;
    try {
      my.SpawnAll();
    } catch (...) {
      failure = std::current_exception();
      const std::lock_guard lock(my.mutex);
      my.Kill();
    }
    if (failure == nullptr) {
      spawned.set_value();
      my.Watch();
    } else {
      for (auto& child : my.children) Reap(child.exit);
      spawned.set_exception(failure);
    }
  });
  outcome.get();
}

RankProcesses::~RankProcesses() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->closing = true;
    impl_->Kill();
  }
  impl_->Wake();
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
      if (impl_->arena->Active(child.rank()) && !impl_->arena->Joined(child.rank()))
        missing.push_back(child.rank());
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
    if (child.ended || child.hang.silence() <= longest.length) continue;
    longest = {.rank = child.rank(), .pid = child.pid(), .length = child.hang.silence()};
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
  for (Impl::Child& child : impl_->children) {  // an absent rank receives no shutdown message
    if (!child.ended && !impl_->arena->Active(child.rank())) impl_->Retire(child);
  }
  if (impl_->spares) impl_->spares->KillAll();
  impl_->RetireEarly();
  const auto all_ended = [&] { return impl_->AllEnded(); };
  if (impl_->changed.wait_for(lock, timeout, all_ended)) return !impl_->killed;
  impl_->Kill();
  impl_->changed.wait_for(lock, kReapTime, all_ended);
  return false;
}

bool RankProcesses::Kill(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  impl_->Kill();
  return impl_->changed.wait_for(lock, timeout, [&] { return impl_->AllEnded(); });
}

std::vector<int> RankProcesses::Running() const {
  std::vector<int> pids;
  const std::lock_guard lock(impl_->mutex);
  for (const Impl::Child& child : impl_->children) {
    if (!child.ended) pids.push_back(child.pid());
  }
  if (impl_->spares) {
    for (const pid_t pid : impl_->spares->pids()) pids.push_back(pid);
  }
  for (const Impl::Child& child : impl_->early) pids.push_back(child.pid());
  return pids;
}

void RankProcesses::KillAll() {
  const std::lock_guard lock(impl_->mutex);
  impl_->Kill();
}

}  // namespace switchyard
