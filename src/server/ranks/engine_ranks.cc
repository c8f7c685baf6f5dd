#include "server/ranks/engine_ranks.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// Time to wait for the root cause after a rank has ended. The cause is in an error message of the
// leader, or in a report of another node.
constexpr auto kCauseTime = 200ms;
// Time to wait for the leader's error message if a rank has ended by itself while it loaded. The
// kind of the error decides whether the ranks start again. The time is long because on a busy
// machine the message may arrive long after the end of its process.
constexpr auto kErrorTime = 2s;
// Time to wait for the reports of the other nodes how their ranks ended. They first kill the ranks.
constexpr auto kReportTime = 2s;

// Without the report of a node, any request may have been in its batch.
void AddOtherNodes(const std::vector<std::optional<NodeRanksEnd>>& nodes,
                   RankHost::Ending* ending) {
  for (const std::optional<NodeRanksEnd>& node : nodes) {
    if (!node || !node->batch) {
      ending->batch.reset();
    } else if (ending->batch) {
      ending->batch->insert(ending->batch->end(), node->batch->begin(), node->batch->end());
    }
    if (!node) continue;
    for (const NodeRanksEnd::Exit& exit : node->exits)
      ending->exits.push_back({.rank = exit.rank, .code = exit.code, .signal = exit.signal});
  }
  ending->NameFailed(/*alone=*/false);
}

}  // namespace

EngineRanks::EngineRanks(const StartHost& start, std::unique_ptr<NodeGroup> nodes, Events events)
    : events_(std::move(events)),
      endpoint_(ControlSocket::UniqueEndpoint()),
      socket_(ControlSocket::Bind(endpoint_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      nodes_(std::move(nodes)) {
  if (wake_.get() < 0) throw Resource("cannot create an event descriptor: {}", strerror(errno));
  const auto on_exit = [this](const std::string& how, bool cause) { OnExit(how, cause); };
  host_ = start(endpoint_, on_exit);
  if (nodes_) nodes_->Watch({.on_lost = on_exit});
  reader_ = std::thread([this] {
    Read();
    const std::lock_guard lock(mutex_);
    reads_ = false;
    changed_.notify_all();
  });
}

EngineRanks::~EngineRanks() {
  Close();
  nodes_.reset();
  socket_.DiscardUnsent();
}

void EngineRanks::Close() {
  if (!reader_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    if (nodes_ && exit_.empty() && !leaving_) nodes_->SendEnd();
    leaving_ = true;
  }
  host_->KillAll();
  stop_ = true;
  Wake();
  reader_.join();
}

void EngineRanks::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

void EngineRanks::OnExit(const std::string& how, bool cause) {
  std::lock_guard lock(mutex_);
  if (leaving_) return;
  if (exit_.empty()) exit_time_ = std::chrono::steady_clock::now();
  if (exit_.empty() || (cause && !exit_is_cause_)) {
    exit_ = how;
    exit_is_cause_ = cause;
  }
  changed_.notify_all();
  Wake();
}

void EngineRanks::Send(const std::vector<ControlMessage>& messages) {
  std::lock_guard lock(send_mutex_);
  socket_.Send(EncodeControl(messages));
}

// The signal that killed a rank is a sufficient cause. A rank that ended by itself had an error, of
// which only the leader's message gives the kind. Errors of ranks that serve have no kind that
// matters.
bool EngineRanks::AwaitsError() {
  bool cause_known = false;
  {
    const std::lock_guard lock(mutex_);
    if (ready_ || !failure_.empty()) return false;
    cause_known = exit_is_cause_;
  }
  const RankHost::Ending ending = host_->HowEnded();
  // Other nodes report later how their ranks ended. The end of a rank by itself is reported as no
  // cause, and its kill, or the end of its node, as a cause.
  if (nodes_ && ending.exits.empty()) return !cause_known;
  return !ending.by_signal && std::ranges::any_of(ending.exits, [](const RankExit& exit) {
    return exit.code != 0 && !exit.absent;
  });
}

void EngineRanks::Read() {
  std::optional<std::chrono::steady_clock::time_point> ended;
  while (!stop_) {
    bool cause_known = false;
    {
      std::lock_guard lock(mutex_);
      if (!exit_.empty() && !ended) ended = std::chrono::steady_clock::now();
      cause_known = exit_is_cause_ || !failure_.empty();
    }
    const auto bytes = ended ? socket_.Receive(5ms) : socket_.Receive(1s, wake_.get());
    if (!bytes) {
      if (!ended) continue;
      const auto since = std::chrono::steady_clock::now() - *ended;
      if (!cause_known && since < kCauseTime) continue;
      if (since < kErrorTime && AwaitsError()) continue;
      Lost();
      return;
    }
    const EngineMessage message = DecodeMessage(*bytes);
    std::unique_lock lock(mutex_);
    if (const auto* ready = std::get_if<RankReady>(&message)) ready_ = *ready;
    if (const auto* progress = std::get_if<LoadProgress>(&message)) progress_ = *progress;
    if (const auto* failure = std::get_if<EngineFailure>(&message)) {
      failure_ = failure->what;
      failure_is_invalid_ = failure->kind == ErrorKind::kInvalid;
    }
    changed_.notify_all();
    lock.unlock();
    events_.on_message(message);
  }
}

void EngineRanks::Lost() {
  host_->EndEpoch();
  Send({});  // wakes an idle leader, which waits for a message
  RanksEnd end;
  {
    std::lock_guard lock(mutex_);
    const bool more = exit_.find(failure_) == std::string::npos;
    end.why = more ? exit_ + ": " + failure_ : exit_;
    end.time = exit_time_;
  }
  if (nodes_) nodes_->SendLost(end.why, /*cause=*/true);
  events_.on_lost(end);
}

void EngineRanks::Retire(const std::vector<int>& ranks, const std::string& why) {
  host_->Retire(ranks, why);
  Send({});  // wakes an idle leader, which waits for a message
}

RankHost::Ending EngineRanks::Reap(std::chrono::milliseconds timeout) {
  if (!host_->Kill(timeout))
    throw Error(ErrorKind::kPeer,
                fmt::format("a rank that was killed has not ended after {:g} s: its process may be "
                            "blocked in a driver or a file system",
                            std::chrono::duration<double>(timeout).count()));
  RankHost::Ending ending = host_->HowEnded();
  if (nodes_) AddOtherNodes(nodes_->AwaitRanksEnds(kReportTime), &ending);
  return ending;
}

void EngineRanks::ThrowExit(std::unique_lock<std::mutex>& lock, const std::string& how) {
  // Without a reported end, the reader does not end.
  changed_.wait_for(lock, exit_.empty() ? kCauseTime : kErrorTime + kCauseTime,
                    [this] { return !failure_.empty() || !reads_; });
  // `how` may already contain failure_, followed by the names of changed weight files. Then `how`
  // is the better message.
  const bool repeated = failure_.empty() || how.find(failure_) != std::string::npos;
  throw Error(failure_is_invalid_ ? ErrorKind::kInvalid : ErrorKind::kPeer,
              repeated ? how : failure_);
}

bool EngineRanks::WaitJoined() {
  try {
    return host_->WaitJoined();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPeer) throw;
    std::unique_lock lock(mutex_);
    ThrowExit(lock, error.what());
  }
}

std::optional<RankReady> EngineRanks::WaitReady(
    const std::function<void(const LoadProgress&)>& progress, const std::atomic<bool>& cancelled) {
  if (!WaitJoined()) return std::nullopt;
  uint64_t shown = 0;
  std::unique_lock lock(mutex_);
  while (!ready_) {
    if (cancelled) return std::nullopt;
    if (!exit_.empty()) ThrowExit(lock, exit_);
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

std::string EngineRanks::Silent(std::chrono::duration<double> limit) const {
  const RankSilence silence = host_->LongestSilence();
  if (silence.rank < 0 || silence.length < limit) return {};
  return fmt::format("{} has sent no heartbeat for {:.0f} s", silence.Name(), silence.seconds());
}

bool EngineRanks::Shutdown(std::chrono::milliseconds timeout) {
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  host_->ExpectEnd();
  if (nodes_) nodes_->SendEnd();
  Send({switchyard::Shutdown{}});
  return host_->WaitEnded(timeout);
}

}  // namespace switchyard
