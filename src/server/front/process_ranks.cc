#include "server/front/process_ranks.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/front/rank_spec.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// How long after a rank's end the leader's own account of it may still arrive.
constexpr auto kLastWords = 200ms;

}  // namespace

ProcessRanks::ProcessRanks(const EngineConfig& config, const EnginePlan& plan, Events events)
    : events_(std::move(events)),
      endpoint_(ControlSocket::UniqueEndpoint()),
      socket_(ControlSocket::Bind(endpoint_)) {
  auto arena = SharedArena::Create(config.mesh.tp, plan.symmetric_bytes_per_rank);
  RankProcesses::Options options{.world = config.mesh.tp,
                                 .spec = EncodeRankSpec(config, plan),
                                 .control_endpoint = endpoint_,
                                 .join_timeout = std::chrono::milliseconds(
                                     static_cast<int64_t>(config.dist_timeout_seconds * 1000))};
  processes_ = std::make_unique<RankProcesses>(std::move(arena), std::move(options),
                                               [this](const RankExit& e) {
                                                 std::lock_guard lock(mutex_);
                                                 if (leaving_) return;
                                                 if (exit_.empty()) exit_ = e.Describe();
                                                 changed_.notify_all();
                                               });
  reader_ = std::thread([this] { Read(); });
}

ProcessRanks::~ProcessRanks() {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  processes_->KillAll();
  stop_ = true;
  reader_.join();
}

void ProcessRanks::Send(const std::vector<ControlMessage>& messages) {
  std::lock_guard lock(send_mutex_);
  socket_.Send(EncodeControl(messages));
}

void ProcessRanks::Read() {
  while (!stop_) {
    bool exited = false;
    {
      std::lock_guard lock(mutex_);
      exited = !exit_.empty();
    }
    const auto bytes = socket_.Receive(exited ? kLastWords : 50ms);
    if (!bytes) {
      if (!exited) continue;
      Lost(exit_);
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

void ProcessRanks::Lost(const std::string& why) {
  processes_->KillAll();
  std::string words;
  {
    std::lock_guard lock(mutex_);
    words = failure_.empty() || failure_ == why ? why : why + ": " + failure_;
  }
  events_.on_lost(words);
}

std::optional<RankReady> ProcessRanks::WaitReady(
    const std::function<void(const LoadProgress&)>& progress, const std::atomic<bool>& cancelled) {
  processes_->WaitJoined();
  uint64_t shown = 0;
  std::unique_lock lock(mutex_);
  while (!ready_) {
    if (cancelled) return std::nullopt;
    if (!exit_.empty()) {
      changed_.wait_for(lock, 2 * kLastWords, [this] { return !failure_.empty(); });
      throw Error(ErrorKind::kPeer, failure_.empty() ? exit_ : failure_);
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

bool ProcessRanks::Shutdown(std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  processes_->ExpectEnd();
  Send({switchyard::Shutdown{}});
  return processes_->WaitEnded(timeout);
}

}  // namespace switchyard
