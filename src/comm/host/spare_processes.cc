#include "comm/host/spare_processes.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "comm/host/spawn.h"
#include "core/check.h"
#include "core/log.h"

namespace switchyard {
namespace {

double Seconds(SpareProcesses::Clock::duration length) {
  return std::chrono::duration<double>(length).count();
}

// Reaps the process if it has ended. Returns its wait status, nullopt while it runs.
std::optional<int> TryReap(pid_t pid) {
  int status = 0;
  pid_t reaped = -1;
  while ((reaped = waitpid(pid, &status, WNOHANG)) < 0 && errno == EINTR) {
  }
  CHECK(reaped == pid || reaped == 0);
  if (reaped == 0) return std::nullopt;
  return status;
}

std::string DescribeEnd(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

}  // namespace

SpareProcesses::SpareProcesses(std::shared_ptr<SharedArena> arena,
                               const RankProcesses::Options& options)
    : arena_(std::move(arena)),
      wanted_(options.spares),
      counts_(options.spare_counts ? options.spare_counts : std::make_shared<SpareCounts>()),
      stall_timeout_(options.stall_timeout),
      load_timeout_(options.load_timeout) {
  CHECK(wanted_ >= 0 && wanted_ <= SharedArena::kMaxSpares / 2);
}

std::optional<int> SpareProcesses::SlotToStart(Clock::time_point now) const {
  if (std::ssize(spares_) >= wanted_ || now < next_start_) return std::nullopt;
  for (int slot = 0; slot < SharedArena::kMaxSpares; ++slot) {
    // A process that has got a place may not have read it yet.
    const auto given = given_.find(slot);
    const bool is_free = given == given_.end() || arena_->PlaceTaken(slot);
    const bool used =
        std::ranges::any_of(spares_, [&](const Spare& s) { return s.process.slot == slot; });
    if (is_free && !used) return slot;
  }
  return std::nullopt;
}

void SpareProcesses::Add(Process process) {
  given_.erase(process.slot);
  spares_.push_back({.process = std::move(process)});
}

void SpareProcesses::StartFailed(Clock::time_point now) {
  counts_->failed.fetch_add(1);
  Delay(now);
}

void SpareProcesses::Delay(Clock::time_point now) {
  constexpr int kMaxDoublings = 6;  // 64 s
  next_start_ = now + std::chrono::seconds(1) * (1 << std::min(failures_++, kMaxDoublings));
}

void SpareProcesses::AddTo(std::vector<pollfd>* fds) const {
  for (const Spare& spare : spares_) fds->push_back({spare.process.pidfd.get(), POLLIN, 0});
}

bool SpareProcesses::Hangs(Spare& spare, Clock::time_point now) {
  const auto& [slot, pid, pidfd] = spare.process;
  if (stall_timeout_.count() > 0) {
    spare.stopped.Sample(IsStopped(pid) ? 1 : 0, now);
    if (spare.stopped.length() >= stall_timeout_) {
      LOG_WARNING(
          "the spare process (pid {}) was stopped for {:.1f} s and is killed "
          "(--rank-stall-timeout)",
          pid, Seconds(spare.stopped.length()));
      return true;
    }
  }
  if (load_timeout_.count() == 0) return false;
  spare.load.Sample(spare.loaded ? 0 : 1 + arena_->spare_steps(slot), now);
  if (spare.load.length() < load_timeout_) return false;
  LOG_WARNING(
      "the load of the spare process (pid {}) made no progress for {:.1f} s; it is killed "
      "(--dist-timeout)",
      pid, Seconds(spare.load.length()));
  return true;
}

bool SpareProcesses::Step(Clock::time_point now) {
  const bool were_any = !spares_.empty();
  std::erase_if(spares_, [&](const Spare& spare) {
    const std::optional<int> status = TryReap(spare.process.pid);
    if (!status) return false;
    if (!spare.retired) {
      counts_->failed.fetch_add(1);
      Delay(now);
      LOG_WARNING("the spare process (pid {}) {}; another one starts in {:.0f} s",
                  spare.process.pid, DescribeEnd(*status), Seconds(next_start_ - now));
    }
    return true;
  });
  for (Spare& spare : spares_) {
    if (spare.retired) continue;
    if (!spare.loaded && arena_->SpareWaits(spare.process.slot)) {
      spare.loaded = true;
      failures_ = 0;
      LOG_INFO("the spare process (pid {}) has loaded after {:.1f} s", spare.process.pid,
               Seconds(now - spare.start));
    }
    if (Hangs(spare, now)) {
      counts_->failed.fetch_add(1);
      Delay(now);
      Kill(spare);
    }
  }
  return were_any && spares_.empty();
}

bool SpareProcesses::Usable(const Spare& spare) const {
  const auto& [slot, pid, pidfd] = spare.process;
  return !spare.retired && arena_->SpareWaits(slot) && !HasEnded(pid) && !IsStopped(pid);
}

int SpareProcesses::ready() const {
  return static_cast<int>(
      std::ranges::count_if(spares_, [this](const Spare& spare) { return Usable(spare); }));
}

std::optional<SpareProcesses::Process> SpareProcesses::Take(int rank) {
  const auto found =
      std::ranges::find_if(spares_, [this](const Spare& spare) { return Usable(spare); });
  if (found == spares_.end()) return std::nullopt;
  Process process = std::move(found->process);
  spares_.erase(found);
  given_[process.slot] = process.pid;
  counts_->used.fetch_add(1);
  arena_->GivePlace(process.slot, rank);
  return process;
}

void SpareProcesses::Ended(pid_t pid) {
  std::erase_if(given_, [&](const auto& given) { return given.second == pid; });
}

void SpareProcesses::Kill(Spare& spare) {
  spare.retired = true;
  kill(spare.process.pid, SIGKILL);
}

void SpareProcesses::Kill(int slot) {
  for (Spare& spare : spares_)
    if (spare.process.slot == slot) Kill(spare);
}

void SpareProcesses::KillAll() {
  for (Spare& spare : spares_) Kill(spare);
}

std::vector<pid_t> SpareProcesses::pids() const {
  std::vector<pid_t> pids;
  for (const Spare& spare : spares_) pids.push_back(spare.process.pid);
  return pids;
}

SpareRanks SpareProcesses::state() const {
  const auto loads = [this](const Spare& spare) {
    return !spare.retired && !arena_->SpareWaits(spare.process.slot);
  };
  return {.wanted = wanted_,
          .ready = ready(),
          .loading = static_cast<int>(std::ranges::count_if(spares_, loads)),
          .used = counts_->used.load(),
          .failed = counts_->failed.load()};
}

}  // namespace switchyard
