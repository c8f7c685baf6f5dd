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

#include "comm/host/hang_watch.h"
#include "comm/host/spawn.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Longest wait for a killed process to end. One that is blocked in a driver or a file system may
// never end.
constexpr std::chrono::seconds kReapTime{30};

// Reaps the process `exit.pid`, which has ended, and adds how it ended.
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

void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

// The watcher's thread also starts the processes. The kernel sends a child its parent-death signal
// when the thread that forked the child ends. So this thread has to live as long as the object.
struct RankProcesses::Impl {
  struct Child {
    RankExit
        exit;  // before the end: rank and pid, and the reason if it was killed because it hangs
    FileDescriptor pidfd;
    bool ended = false;     // reaped
    bool reported = false;  // after `ended`: the callback has returned
    bool retired = false;   // killed on purpose: ends, even if WaitForEpoch is still active
    HangWatch hang;

    int rank() const { return exit.rank; }
    pid_t pid() const { return exit.pid; }
  };

  std::shared_ptr<SharedArena> arena;
  Options options;
  OnExit on_exit;

  // Guards the members below. Children are reaped with the mutex held, so that a kill under the
  // mutex cannot hit a reused pid.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Child> children;  // in order of rank
  std::vector<RankExit> exits;  // exits in this epoch, in the order in which ranks ended
  bool end_expected = false;
  bool killed = false;
  bool closing = false;
  // If set, the watcher's thread begins an epoch and fulfills the promise with the ranks that it
  // has started; nullopt: it has killed ranks instead, and the epoch can begin when they have
  // ended.
  using Started = std::optional<std::vector<int>>;
  std::optional<std::promise<Started>> next_epoch;
  RunsWith runs_with;  // of the next epoch

  FileDescriptor wake;  // an eventfd that ends the watcher's wait
  std::vector<std::string> environment;

  std::jthread watcher;  // the last member, so that it is joined first

  void SpawnAll();
  Child Spawn(int i);
  std::vector<int> SpawnMissing();
  void Wake() const;
  void BeginEpoch();
  void Watch();
  void SampleHeartbeats();
  void OnEnd(size_t child);
  int first_rank() const { return options.network ? options.network->first_rank() : 0; }
  int count() const {
    return options.network ? options.network->world.ranks_per_node : options.world;
  }
  bool RetireLoading();
  void Kill();                // requires the mutex
  void Retire(Child& child);  // requires the mutex
  bool AllEnded() const { return std::ranges::all_of(children, &Child::reported); }
};

RankProcesses::Impl::Child RankProcesses::Impl::Spawn(int i) {
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
  Child child;
  child.exit = {.rank = rank,
                .pid = SpawnSelf({"switchyard", options.command}, variables, inherited)};
  child.pidfd = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, child.pid(), 0)));
  return child;
}

void RankProcesses::Impl::SpawnAll() {
  for (int i = 0; i < count(); ++i) {
    Child child = Spawn(i);
    const std::lock_guard lock(mutex);
    children.push_back(std::move(child));
    if (children.back().pidfd.get() < 0)
      throw Resource("cannot watch rank {}: {}", first_rank() + i, strerror(errno));
  }
  options.network.reset();  // closes the listeners, which the ranks have inherited
}

// Starts a new process for each rank whose process has ended. Returns these ranks.
std::vector<int> RankProcesses::Impl::SpawnMissing() {
  std::vector<int> started;
  for (int i = 0; i < std::ssize(children); ++i) {  // only this thread changes the list
    if (!children[i].ended) continue;
    Child child = Spawn(i);
    if (child.pidfd.get() < 0) {
      const int error = errno;
      kill(child.pid(), SIGKILL);
      Reap(child.exit);
      throw Resource("cannot watch rank {}: {}", child.rank(), strerror(error));
    }
    const std::lock_guard lock(mutex);
    children[i] = std::move(child);
    started.push_back(children[i].rank());
  }
  return started;
}

void RankProcesses::Impl::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake.get(), &one, sizeof one);
}

// Runs on the watcher's thread, which also reaps. So `children` does not change in this function
// except by SpawnMissing.
void RankProcesses::Impl::BeginEpoch() {
  std::optional<std::promise<Started>> request;
  std::vector<int> absent, others;
  {
    const std::lock_guard lock(mutex);
    request.swap(next_epoch);
    if (!request) return;
    for (const Child& child : children)
      (child.ended || !arena->Waits(child.rank()) ? absent : others).push_back(child.rank());
  }
  try {
    if (absent.empty() || others.empty() || !runs_with || !runs_with(others)) {
      if (RetireLoading()) {
        request->set_value(std::nullopt);
        return;
      }
      absent.clear();
    }
    bool damaged = false;
    {
      const std::lock_guard lock(mutex);
      // A process that ended by a fault signal may have overwritten any memory before.
      damaged = std::ranges::any_of(
          exits, [](const RankExit& exit) { return exit.signal != 0 && exit.ByItself(); });
      exits.clear();
      killed = false;
    }
    if (damaged) arena->ClearKept();
    arena->BeginEpoch(options.control_endpoint, absent);
    request->set_value(SpawnMissing());
  } catch (...) {
    request->set_exception(std::current_exception());
  }
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
      stays = options.epochs && !closing;
    }
    if (watched.empty() && !stays) return;
    poll(fds.data(), fds.size(), static_cast<int>(kHeartbeatSampleTime.count()));
    SampleHeartbeats();
    for (size_t i = 0; i < watched.size(); ++i) {
      if (fds[i + 1].revents != 0) OnEnd(watched[i]);
    }
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
    children[child].ended = true;
    const bool is_clean = exit.signal == 0 && exit.code == 0;
    is_news = !killed && !children[child].retired && !(end_expected && is_clean);
  }
  if (is_news) {
    arena->Abort(exit.Describe());
    if (on_exit) on_exit(exit);
  }
  // Notifies after the callback, because a waiter may rely on the callback having returned.
  const std::lock_guard lock(mutex);
  exits.push_back(exit);
  children[child].reported = true;
  changed.notify_all();
}

// Kills the ranks that neither have ended nor wait for the next epoch. False if there are none.
bool RankProcesses::Impl::RetireLoading() {
  bool any = false;
  const std::lock_guard lock(mutex);
  for (Child& child : children) {
    if (child.ended || arena->Waits(child.rank())) continue;
    Retire(child);
    any = true;
  }
  return any;
}

void RankProcesses::Impl::Kill() {
  killed = true;
  for (Child& child : children) {
    if (!child.ended) Retire(child);
  }
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
  if (impl_->options.epochs) impl_->arena->EnableEpochs();
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
  return pids;
}

bool RankProcesses::Settle(std::chrono::milliseconds wait, std::chrono::milliseconds end) {
  // A rank that begins to wait writes to shared memory, which does not notify `changed`.
  constexpr std::chrono::milliseconds kPoll{1};
  using Clock = std::chrono::steady_clock;
  RankProcesses::Impl& my = *impl_;
  const auto settled = [&](const Impl::Child& child) {
    if (child.reported) return true;
    // An absent rank may load for long, and continues in the next epoch.
    return !child.retired && (my.arena->Waits(child.rank()) || !my.arena->Active(child.rank()));
  };
  std::unique_lock lock(my.mutex);
  const auto give_up = Clock::now() + wait;
  while (!std::ranges::all_of(my.children, settled) && Clock::now() < give_up)
    my.changed.wait_for(lock, kPoll);
  my.killed = true;  // exits from now on are not reported
  for (Impl::Child& child : my.children) {
    if (!child.ended && !my.arena->Waits(child.rank()) && my.arena->Active(child.rank()))
      my.Retire(child);
  }
  return my.changed.wait_for(lock, end, [&] { return std::ranges::all_of(my.children, settled); });
}

void RankProcesses::Retire(const std::vector<int>& ranks, const std::string& why) {
  impl_->arena->Abort(why);  // first, so that the ranks do not report the kills to each other
  const std::lock_guard lock(impl_->mutex);
  for (Impl::Child& child : impl_->children) {
    if (child.ended || std::ranges::find(ranks, child.rank()) == ranks.end()) continue;
    impl_->Retire(child);
  }
}

std::vector<int> RankProcesses::BeginEpoch(const std::string& control_endpoint,
                                           RunsWith runs_with) {
  std::unique_lock lock(impl_->mutex);
  CHECK(impl_->options.epochs && !impl_->closing);
  impl_->options.control_endpoint = control_endpoint;
  impl_->runs_with = std::move(runs_with);
  for (;;) {
    std::future<Impl::Started> result = impl_->next_epoch.emplace().get_future();
    lock.unlock();
    impl_->Wake();
    if (Impl::Started started = result.get()) return *std::move(started);
    lock.lock();
    const auto ended = [](const Impl::Child& child) { return child.reported || !child.retired; };
    if (!impl_->changed.wait_for(lock, kReapTime,
                                 [&] { return std::ranges::all_of(impl_->children, ended); }))
      throw Error(ErrorKind::kPeer,
                  fmt::format("a rank that was killed while it loaded has not ended after {} s",
                              kReapTime.count()));
  }
}

std::vector<int> RankProcesses::Absent() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < impl_->arena->world(); ++rank) {
    if (!impl_->arena->Active(rank)) ranks.push_back(rank);
  }
  return ranks;
}

bool RankProcesses::AbsentWait() const {
  return std::ranges::all_of(Absent(), [this](int rank) { return impl_->arena->Waits(rank); });
}

void RankProcesses::KillAll() {
  const std::lock_guard lock(impl_->mutex);
  impl_->Kill();
}

}  // namespace switchyard
