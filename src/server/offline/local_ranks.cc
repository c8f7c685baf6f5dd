#include "server/offline/local_ranks.h"

#include <memory>
#include <utility>

#include "comm/device/rank_threads.h"
#include "core/blocked_signals.h"
#include "core/error.h"

namespace switchyard::offline {
namespace {

using namespace std::chrono_literals;

constexpr char kStopped[] = "the engine was stopped while it was loading";

std::string TextOf(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "they were shut down";
}

}  // namespace

LocalRanks::LocalRanks(const EngineConfig& config, const EnginePlan& plan, Events events)
    : events_(std::move(events)) {
  // The threads of the engine block the signals that are sent to the process.
  const BlockedSignals blocked(BlockedSignals::Faults::kUnblocked);
  ranks_ = std::thread([this, config, plan] { Run(config, plan); });
  reader_ = std::thread([this] { Read(); });
}

void LocalRanks::Run(const EngineConfig& config, const EnginePlan& plan) {
  const RankLoopIo leader{
      .receive = [this](std::chrono::milliseconds timeout) { return Receive(timeout); },
      .send = [this](const EngineMessage& message) { Deliver(message); },
      .reconnect = nullptr};
  std::exception_ptr failure;
  try {
    const int world = config.mesh.world();
    const auto arena = SharedArena::Create(world, plan.symmetric_bytes_per_rank);
    {
      const std::lock_guard lock(mutex_);
      arena_ = arena;
      if (stopping_) arena->AbortHere(kStopped);
    }
    RunRankThreads(std::vector(static_cast<size_t>(world), arena),
                   [&](int rank, const std::shared_ptr<SharedArena>& shared) {
                     RunRankLoop(config, plan, rank, shared, rank == 0 ? leader : RankLoopIo{});
                   });
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  arena_ = nullptr;
  ended_ = true;
  failure_ = failure;
  changed_.notify_all();
}

std::vector<ControlMessage> LocalRanks::Receive(std::chrono::milliseconds timeout) {
  std::unique_lock lock(inbox_mutex_);
  if (timeout.count() > 0)  // 0: without a system call
    arrived_.wait_for(lock, timeout, [this] { return !inbox_.empty(); });
  return std::exchange(inbox_, {});
}

void LocalRanks::Send(const std::vector<ControlMessage>& messages) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.insert(inbox_.end(), messages.begin(), messages.end());
  arrived_.notify_all();
}

void LocalRanks::Deliver(const EngineMessage& message) {
  const std::lock_guard lock(mutex_);
  outbox_.push_back(message);
  changed_.notify_all();
}

void LocalRanks::Read() {
  for (;;) {
    std::vector<EngineMessage> messages;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !outbox_.empty() || ended_; });
    messages.swap(outbox_);
    const bool expected = stopping_;
    if (messages.empty()) {
      const std::string why = TextOf(failure_);
      lock.unlock();
      if (!expected) events_.on_lost(why);
      return;
    }
    lock.unlock();
    for (const EngineMessage& message : messages) {
      if (std::holds_alternative<RankReady>(message)) {
        const std::lock_guard ready(mutex_);
        ready_ = true;
        changed_.notify_all();
      }
      if (expected && std::holds_alternative<EngineFailure>(message)) continue;  // Stop's abort
      events_.on_message(message);
    }
  }
}

bool LocalRanks::WaitReady(const std::function<bool()>& interrupted) {
  std::unique_lock lock(mutex_);
  do {
    changed_.wait_for(lock, 100ms, [this] { return ready_ || ended_; });
    lock.unlock();
    if (interrupted && interrupted()) return false;
    lock.lock();
  } while (!ready_ && !ended_);
  if (ready_) return true;
  if (failure_) std::rethrow_exception(failure_);
  throw Error(ErrorKind::kPeer, "the ranks ended while they were loading");
}

void LocalRanks::Stop() {
  if (!ranks_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (!ready_ && arena_) arena_->AbortHere(kStopped);
  }
  Send({Shutdown{}});
  ranks_.join();
  reader_.join();
}

}  // namespace switchyard::offline
