#include "engine/thread_engine.h"

#include <condition_variable>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/device/communicator.h"
#include "core/error.h"

namespace switchyard {

// `mutex` guards everything below it. Callbacks run without it, so they may submit and abort.
struct ThreadEngine::Impl {
  std::function<void(uint64_t, uint64_t)> progress;
  std::thread ranks;  // waits for the rank threads

  std::mutex mutex;
  std::condition_variable news;       // `inbox` grew, or `ready` or `ended` was set
  std::vector<ControlMessage> inbox;  // for the leader
  std::map<uint64_t, Engine::Callback> open;
  std::map<uint64_t, std::promise<EngineStats>> asked;
  uint64_t last_id = 0, last_ticket = 0;
  bool ready = false, ended = false;
  std::exception_ptr failure;

  std::vector<ControlMessage> Receive(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    news.wait_for(lock, timeout, [this] { return !inbox.empty(); });
    return std::exchange(inbox, {});
  }

  void Tell(ControlMessage message) {  // with the mutex held
    inbox.push_back(std::move(message));
    news.notify_all();
  }

  void Handle(const EngineMessage& message) {
    if (const auto* outputs = std::get_if<StepOutputs>(&message)) {
      for (const RequestOutput& output : outputs->outputs) Deliver(output);
    } else if (const auto* load = std::get_if<LoadProgress>(&message)) {
      if (progress) progress(load->done, load->total);
    } else if (const auto* stats = std::get_if<EngineStats>(&message)) {
      const std::lock_guard lock(mutex);
      if (const auto entry = asked.extract(stats->ticket)) entry.mapped().set_value(*stats);
    } else if (std::holds_alternative<RankReady>(message)) {
      const std::lock_guard lock(mutex);
      ready = true;
      news.notify_all();
    }  // a failure comes as the exception that the ranks end with
  }

  // Only this thread erases entries, so the callback stays where it is while it runs unlocked.
  void Deliver(const RequestOutput& output) {
    const Engine::Callback* callback = nullptr;
    {
      const std::lock_guard lock(mutex);
      const auto entry = open.find(output.id);
      if (entry == open.end()) return;
      callback = &entry->second;
    }
    (*callback)(output);
    if (output.finish == FinishReason::kNone) return;
    const std::lock_guard lock(mutex);
    open.erase(output.id);
  }

  // After the last rank: whoever still waits hears why.
  void End(std::exception_ptr why) {
    std::map<uint64_t, Engine::Callback> left;
    {
      const std::lock_guard lock(mutex);
      ended = true;
      failure = why;
      left.swap(open);
      const auto error = std::make_exception_ptr(Ended());
      for (auto& [ticket, promise] : asked) promise.set_exception(error);
      asked.clear();
      news.notify_all();
    }
    for (const auto& [id, callback] : left)
      callback({.id = id, .finish = FinishReason::kError, .error = Ended().what()});
  }

  Error Ended() const {
    std::string why = "it was shut down";
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      why = error.what();
    }
    return Error(ErrorKind::kPeer, "the engine has ended: " + why);
  }
};

ThreadEngine::ThreadEngine(int world, size_t bytes_per_rank, RankBody body,
                           std::function<void(uint64_t, uint64_t)> progress)
    : impl_(std::make_unique<Impl>()) {
  impl_->progress = std::move(progress);
  impl_->ranks = std::thread([this, world, bytes_per_rank, body = std::move(body)] {
    const RankLoopIo leader{
        .receive = [this](std::chrono::milliseconds timeout) { return impl_->Receive(timeout); },
        .send = [this](const EngineMessage& message) { impl_->Handle(message); }};
    std::exception_ptr failure;
    try {
      RunRankThreads(world, bytes_per_rank, [&](int rank, std::shared_ptr<SharedArena> arena) {
        body(rank, std::move(arena), rank == 0 ? leader : RankLoopIo{});
      });
    } catch (...) {
      failure = std::current_exception();
    }
    impl_->End(failure);
  });

  std::unique_lock lock(impl_->mutex);
  impl_->news.wait(lock, [this] { return impl_->ready || impl_->ended; });
  if (impl_->ready) return;
  lock.unlock();
  impl_->ranks.join();
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  throw impl_->Ended();
}

ThreadEngine::~ThreadEngine() {
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [id, callback] : impl_->open) impl_->inbox.push_back(AbortRequest{id});
    impl_->Tell(Shutdown{});
  }
  impl_->ranks.join();
}

uint64_t ThreadEngine::Submit(EngineRequest request, Engine::Callback on_output) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->ended) throw impl_->Ended();
  request.id = ++impl_->last_id;
  impl_->open.emplace(request.id, std::move(on_output));
  impl_->Tell(std::move(request));
  return impl_->last_id;
}

void ThreadEngine::Abort(uint64_t id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->Tell(AbortRequest{id});
}

EngineStats ThreadEngine::Stats() {
  std::future<EngineStats> answer;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->ended) throw impl_->Ended();
    const uint64_t ticket = ++impl_->last_ticket;
    answer = impl_->asked[ticket].get_future();
    impl_->Tell(GetStats{ticket});
  }
  return answer.get();
}

}  // namespace switchyard
