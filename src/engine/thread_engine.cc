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
  std::thread ranks;  // starts the rank threads and waits for them

  std::mutex mutex;
  std::condition_variable news;       // `inbox` grew, or `ready` or `ended` was set
  std::vector<ControlMessage> inbox;  // messages for the leader
  struct Open {
    Engine::Callback callback;
    int group = 0;
    int64_t tokens = 0;  // tokens of this request in the controller's counts
  };
  DpController controller;
  std::map<uint64_t, Open> open;
  std::map<uint64_t, std::promise<std::vector<EngineStats>>> pending_stats;
  std::map<uint64_t, std::promise<bool>> pending_flushes;
  uint64_t last_id = 0, last_ticket = 0;
  bool ready = false, ended = false;
  std::exception_ptr failure;

  std::vector<ControlMessage> Receive(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex);
    const auto arrived = [this] { return !inbox.empty(); };
    if (timeout.count() > 0) news.wait_for(lock, timeout, arrived);  // 0: without a system call
    return std::exchange(inbox, {});
  }

  // The caller must hold the mutex. noinline: if this were inlined into a caller that passes one
  // type of the variant, GCC 12 would warn that the other types may be used uninitialized.
  [[gnu::noinline]] void Tell(ControlMessage message) {
    inbox.push_back(std::move(message));
    news.notify_all();
  }

  void Handle(const EngineMessage& message) {
    if (const auto* outputs = std::get_if<StepOutputs>(&message)) {
      for (const RequestOutput& output : outputs->outputs) Deliver(output);
    } else if (const auto* load = std::get_if<LoadProgress>(&message)) {
      if (progress) progress(load->done, load->total);
    } else if (const auto* stats = std::get_if<StatsReport>(&message)) {
      Answer(pending_stats, stats->ticket, stats->groups);
    } else if (const auto* flush = std::get_if<FlushResult>(&message)) {
      if (flush->done) {
        const std::lock_guard lock(mutex);
        controller.ForgetPrompts();
      }
      Answer(pending_flushes, flush->ticket, flush->done);
    } else if (std::holds_alternative<RankReady>(message)) {
      const std::lock_guard lock(mutex);
      ready = true;
      news.notify_all();
    }  // failures arrive as the exception of RunRankThreads
  }

  template <typename T>
  void Answer(std::map<uint64_t, std::promise<T>>& promises, uint64_t ticket, const T& value) {
    const std::lock_guard lock(mutex);
    if (const auto entry = promises.extract(ticket)) entry.mapped().set_value(value);
  }

  // Sends a query to the ranks and waits for the answer.
  template <typename Question, typename T>
  T Ask(std::map<uint64_t, std::promise<T>>& promises) {
    std::future<T> answer;
    {
      const std::lock_guard lock(mutex);
      if (ended) throw Ended();
      const uint64_t ticket = ++last_ticket;
      answer = promises[ticket].get_future();
      Tell(Question{ticket});
    }
    return answer.get();
  }

  template <typename T>
  void FailPendingQueries(std::map<uint64_t, std::promise<T>>& promises) {  // requires the mutex
    for (auto& [ticket, promise] : promises)
      promise.set_exception(std::make_exception_ptr(Ended()));
    promises.clear();
  }

  // Only this thread erases entries, so the callback's address is stable while it runs unlocked.
  void Deliver(const RequestOutput& output) {
    const auto count = std::ssize(output.new_tokens);
    Open* request = nullptr;
    {
      const std::lock_guard lock(mutex);
      const auto entry = open.find(output.id);
      if (entry == open.end()) return;
      request = &entry->second;
      request->tokens += count;
      controller.Grow(request->group, count);
    }
    request->callback(output);
    if (output.finish == FinishReason::kNone) return;
    const std::lock_guard lock(mutex);
    controller.Close(request->group, request->tokens);
    open.erase(output.id);
  }

  // Runs after the last rank ends: fails all waiting callers with the reason.
  void End(std::exception_ptr why) {
    std::map<uint64_t, Open> left;
    {
      const std::lock_guard lock(mutex);
      ended = true;
      failure = why;
      left.swap(open);
      FailPendingQueries(pending_stats);
      FailPendingQueries(pending_flushes);
      news.notify_all();
    }
    for (const auto& [id, request] : left)
      request.callback({.id = id, .finish = FinishReason::kError, .error = Ended().what()});
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
                           std::function<void(uint64_t, uint64_t)> progress,
                           DpController controller)
    : impl_(std::make_unique<Impl>()) {
  impl_->progress = std::move(progress);
  impl_->controller = std::move(controller);
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
    for (const auto& [id, request] : impl_->open) impl_->Tell(AbortRequest{id});
    impl_->Tell(Shutdown{});
  }
  impl_->ranks.join();
}

uint64_t ThreadEngine::Submit(EngineRequest request, Engine::Callback on_output) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->ended) throw impl_->Ended();
  const auto tokens = std::ssize(request.input_ids);
  request.group =
      impl_->controller.Open(request.group, tokens, {request.input_ids, request.cache_salt});
  request.id = ++impl_->last_id;
  impl_->open.emplace(request.id, Impl::Open{std::move(on_output), *request.group, tokens});
  impl_->Tell(std::move(request));
  return impl_->last_id;
}

void ThreadEngine::Abort(uint64_t id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->Tell(AbortRequest{id});
}

void ThreadEngine::Tell(ControlMessage message) {
  const std::lock_guard lock(impl_->mutex);
  impl_->Tell(std::move(message));
}

std::vector<EngineStats> ThreadEngine::Stats() {
  return impl_->Ask<GetStats>(impl_->pending_stats);
}
bool ThreadEngine::FlushCache() {
  return impl_->Ask<switchyard::FlushCache>(impl_->pending_flushes);
}

}  // namespace switchyard
