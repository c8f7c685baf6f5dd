// Epochs of rank processes, and the spares that take the places of ranks.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/host/rank_processes_impl.h"
#include "comm/host/spawn.h"
#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {

// A process for rank `i` of this node, whose process has ended: a spare that has loaded, else a new
// process.
RankProcesses::Impl::Child RankProcesses::Impl::Replace(int i) {
  const int rank = first_rank() + i;
  {
    const std::lock_guard lock(mutex);
    if (auto spare = spares->Take(rank)) {
      LOG_INFO("the spare process (pid {}) takes the place of rank {}", spare->pid, rank);
      Child child;
      child.exit = {.rank = rank, .pid = spare->pid};
      child.pidfd = std::move(spare->pidfd);
      return child;
    }
  }
  return Spawn(i);
}

// Starts the next process of rank `i`, which was killed, if it is to start before the next epoch.
void RankProcesses::Impl::SpawnEarly(int i) {
  {
    const std::lock_guard lock(mutex);
    const auto ended = std::ranges::count_if(children, &Child::ended);
    // The descriptors of a damaged process are cleared later.
    if (!options.keeps_descriptors || children[i].exit.signal == 0 ||
        children[i].exit.MayHaveDamaged() || spares->ready() >= ended || killed || closing ||
        end_expected)
      return;
    starts_early = true;
  }
  try {
    Child child = Spawn(i, arena->epoch());
    const std::lock_guard lock(mutex);
    early.push_back(std::move(child));
    if (all_killed || closing || end_expected) RetireEarly();
  } catch (const std::exception& error) {
    LOG_WARNING("the next process of rank {} starts with the next epoch: {}", first_rank() + i,
                error.what());
  }
  const std::lock_guard lock(mutex);
  starts_early = false;
  changed.notify_all();
}

// Gives the processes of SpawnEarly that run to their ranks. Returns these ranks. Call it before
// the epoch begins: a process that ends in the epoch must be a child, so that its end is noticed.
std::vector<int> RankProcesses::Impl::TakeEarly() {
  std::vector<int> taken;
  const std::lock_guard lock(mutex);
  for (Child& child : children) {
    const auto found = std::ranges::find_if(early, [&](const Child& next) {
      return next.rank() == child.rank() && !next.retired && !HasEnded(next.pid());
    });
    if (!child.ended || found == early.end()) continue;
    child = std::move(*found);
    early.erase(found);
    taken.push_back(child.rank());
  }
  return taken;
}

// Reaps processes of SpawnEarly that have ended.
void RankProcesses::Impl::StepEarly() {
  const std::lock_guard lock(mutex);
  const size_t reaped = std::erase_if(early, [](const Child& child) {
    if (!HasEnded(child.pid())) return false;
    const RankExit exit = Reap(child.exit);
    if (!child.retired) LOG_WARNING("{} before its epoch began", exit.Describe());
    return true;
  });
  if (reaped > 0) changed.notify_all();
}

void RankProcesses::Impl::RetireEarly() {
  for (Child& child : early) Retire(child);
}

// Starts a process for each rank whose process has ended, or takes a spare. Returns these ranks.
std::vector<int> RankProcesses::Impl::SpawnMissing() {
  std::vector<int> started;
  for (int i = 0; i < std::ssize(children); ++i) {  // only this thread changes the list
    if (!children[i].ended) continue;
    Child child = Replace(i);
    const std::lock_guard lock(mutex);
    children[i] = std::move(child);
    started.push_back(children[i].rank());
  }
  return started;
}

// Runs on the watcher's thread, which also reaps. So `children` does not change in this function
// except by TakeEarly and SpawnMissing.
void RankProcesses::Impl::BeginEpoch() {
  std::optional<std::promise<Started>> request;
  std::vector<int> absent, others;
  {
    const std::lock_guard lock(mutex);
    request.swap(next_epoch);
    if (!request) return;
    const auto ended = std::ranges::count_if(children, &Child::ended);
    // Spares take the places of all ranks that have ended, and have little to load.
    const bool replaced = options.spares_join && spares->ready() >= ended;
    for (const Child& child : children) {
      const bool serves = child.ended ? replaced : arena->Waits(child.rank());
      (serves ? others : absent).push_back(child.rank());
    }
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
      // Exits after Settle are not in `exits`.
      for (size_t i = 0; i < children.size(); ++i) {
        if (!children[i].ended || !children[i].exit.MayHaveDamaged()) continue;
        damaged = true;
        if (!kept.empty()) kept[i].Clear();
      }
      exits.clear();
      killed = false;
    }
    if (damaged) arena->ClearKept();
    std::vector<int> started = TakeEarly();
    arena->BeginEpoch(options.control_endpoint, absent, message);
    std::ranges::copy(SpawnMissing(), std::back_inserter(started));
    std::ranges::sort(started);
    request->set_value(std::move(started));
  } catch (...) {
    request->set_exception(std::current_exception());
  }
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

// Whether all active ranks serve. Spares load only then, because they would delay a start or a
// restart.
bool RankProcesses::Impl::Serves() const {
  return std::ranges::all_of(children, [this](const Child& child) {
    return !child.ended && (!arena->Active(child.rank()) || arena->beats(child.rank()) != 0);
  });
}

void RankProcesses::Impl::StepSpares() {
  const auto now = SpareProcesses::Clock::now();
  std::optional<int> slot;
  {
    const std::lock_guard lock(mutex);
    if (!spares) return;
    if (spares->Step(now)) changed.notify_all();
    if (!killed && !closing && !end_expected && Serves()) slot = spares->SlotToStart(now);
  }
  if (!slot) return;
  try {
    SpawnSpare(*slot);
  } catch (const std::exception& error) {
    LOG_WARNING("no spare process: {}", error.what());
    const std::lock_guard lock(mutex);
    spares->StartFailed(now);
  }
}

void RankProcesses::Impl::SpawnSpare(int slot) {
  arena->ClearSpare(slot);
  SpareProcesses::Process process{.slot = slot};
  std::vector<int> inherited = {arena->fd()};
  for (const KeptDescriptors& of_rank : kept) {
    for (const int fd : of_rank.fds()) inherited.push_back(fd);
  }
  process.pid = SpawnProcess({.world = options.world, .spec = options.spec, .spare = slot},
                             std::move(inherited));
  process.pidfd = OpenPidfd(process.pid, "a spare process");
  const std::lock_guard lock(mutex);
  spares->Add(std::move(process));
  // The ranks may have ended during the start of the process. In a restart (Settle), spares that
  // have loaded are kept: the next epoch needs them.
  if (killed || closing || end_expected) spares->Kill(slot);
}

SpareRanks RankProcesses::Spares() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->spares ? impl_->spares->state() : SpareRanks();
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
    if (child.ended || my.arena->Waits(child.rank()) || !my.arena->Active(child.rank())) continue;
    LOG_INFO("rank {} has not ended its epoch after {:g} s, and is killed", child.rank(),
             std::chrono::duration<double>(wait).count());
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

std::vector<int> RankProcesses::BeginEpoch(const std::string& control_endpoint, RunsWith runs_with,
                                           std::string message) {
  std::unique_lock lock(impl_->mutex);
  CHECK(impl_->options.epochs && !impl_->closing);
  impl_->options.control_endpoint = control_endpoint;
  impl_->runs_with = std::move(runs_with);
  impl_->message = std::move(message);
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

void RankProcesses::ClearDescriptors() {
  std::unique_lock lock(impl_->mutex);
  const auto deadline = std::chrono::steady_clock::now() + kReapTime;
  const auto await = [&](const auto& done, const char* what) {
    if (!impl_->changed.wait_until(lock, deadline, done))
      LOG_WARNING("processes for the next epoch {} within {} s", what, kReapTime.count());
  };
  await([&] { return !impl_->starts_early; }, "have not started");
  impl_->RetireEarly();  // they may have mapped what the descriptors describe
  await([&] { return impl_->early.empty(); }, "have been killed, but have not ended");
  for (size_t i = 0; i < impl_->kept.size(); ++i) {
    if (impl_->children[i].ended) impl_->kept[i].Clear();
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

}  // namespace switchyard
