#include "server/offline/local_ranks.h"

#include <memory>
#include <utility>

#include "comm/device/communicator.h"
#include "core/blocked_signals.h"
#include "core/error.h"

namespace switchyard::offline {
namespace {

using namespace std::chrono_literals;

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
    RunRankThreads(config.mesh.world(), plan.symmetric_bytes_per_rank,
                   [&](int rank, const std::shared_ptr<SharedArena>& arena) {
                     RunRankLoop(config, plan, rank, arena, rank == 0 ? leader : RankLoopIo{});
                   });
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
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
    if (messages.empty()) {
      const bool expected = stopping_;
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
  }
  Send({Shutdown{}});
  ranks_.join();
  reader_.join();
}

}  // namespace switchyard::offline
