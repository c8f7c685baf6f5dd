#include "server/ranks/engine_ranks.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// How long after a rank's end the leader's own account of it, or another node's, may still arrive.
constexpr auto kLastWords = 200ms;

}  // namespace

EngineRanks::EngineRanks(const StartHost& start, std::unique_ptr<NodeGroup> nodes, Events events)
    : events_(std::move(events)),
      endpoint_(ControlSocket::UniqueEndpoint()),
      socket_(ControlSocket::Bind(endpoint_)),
      nodes_(std::move(nodes)) {
  const auto on_exit = [this](const std::string& how, bool cause) { OnExit(how, cause); };
  host_ = start(endpoint_, on_exit);
  if (nodes_) nodes_->Watch({.on_lost = on_exit});
  reader_ = std::thread([this] { Read(); });
}

EngineRanks::~EngineRanks() {
  {
    std::lock_guard lock(mutex_);
    if (nodes_ && exit_.empty() && !leaving_) nodes_->SayEnd();
    leaving_ = true;
  }
  host_->KillAll();
  stop_ = true;
  reader_.join();
  nodes_.reset();
}

void EngineRanks::OnExit(const std::string& how, bool cause) {
  std::lock_guard lock(mutex_);
  if (leaving_) return;
  if (exit_.empty() || (cause && !exit_is_cause_)) {
    exit_ = how;
    exit_is_cause_ = cause;
  }
  changed_.notify_all();
}

void EngineRanks::Send(const std::vector<ControlMessage>& messages) {
  std::lock_guard lock(send_mutex_);
  socket_.Send(EncodeControl(messages));
}

void EngineRanks::Read() {
  while (!stop_) {
    bool exited = false;
    {
      std::lock_guard lock(mutex_);
      exited = !exit_.empty();
    }
    const auto bytes = socket_.Receive(exited ? kLastWords : 50ms);
    if (!bytes) {
      if (!exited) continue;
      Lost();
      return;
    }
    const EngineMessage message = DecodeMessage(*bytes);
    std::unique_lock lock(mutex_);
    if (const auto* ready = std::get_if<RankReady>(&message)) ready_ = *ready;
    if (const auto* progress = std::get_if<LoadProgress>(&message)) progress_ = *progress;
    if (const auto* failure = std::get_if<EngineFailure>(&message)) failure_ = failure->what;
    changed_.notify_all();
    lock.unlock();
    events_.on_message(message);
  }
}

void EngineRanks::Lost() {
  host_->KillAll();
  std::string words;
  {
    std::lock_guard lock(mutex_);
    // The ranks' own words may be the reason again, without what was found out about it here.
    words = failure_.empty() || exit_.starts_with(failure_) ? exit_ : exit_ + ": " + failure_;
  }
  if (nodes_) nodes_->SayLost(words, /*cause=*/true);
  events_.on_lost(words);
}

std::optional<RankReady> EngineRanks::WaitReady(
    const std::function<void(const LoadProgress&)>& progress, const std::atomic<bool>& cancelled) {
  host_->WaitJoined();
  uint64_t shown = 0;
  std::unique_lock lock(mutex_);
  while (!ready_) {
    if (cancelled) return std::nullopt;
    if (!exit_.empty()) {
      changed_.wait_for(lock, 2 * kLastWords, [this] { return !failure_.empty(); });
      const bool said = !failure_.empty() && !exit_.starts_with(failure_);
      throw Error(ErrorKind::kPeer, said ? failure_ : exit_);
    }
    if (progress_.done > shown) {
      shown = progress_.done;
      const LoadProgress now = progress_;
      lock.unlock();
      progress(now);
      lock.lock();
    }
    changed_.wait_for(lock, 100ms);
  }
  return ready_;
}

bool EngineRanks::Shutdown(std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  host_->ExpectEnd();
  if (nodes_) nodes_->SayEnd();
  Send({switchyard::Shutdown{}});
  return host_->WaitEnded(timeout);
}

}  // namespace switchyard
