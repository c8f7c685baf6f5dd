#include "eplb/migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "eplb/plan_job.h"

namespace switchyard {
namespace {

struct Stopped {};  // thrown to end the loading thread in the middle of a layer

// Copies the longest prefix of `text` that fits with its null terminator and ends with a whole
// UTF-8 character.
template <size_t kSize>
std::array<char, kSize> Utf8Prefix(const std::string& text) {
  std::array<char, kSize> out{};
  size_t size = std::min(text.size(), kSize - 1);
  if (size < text.size())
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  std::memcpy(out.data(), text.data(), size);
  return out;
}

}  // namespace

Migration::Migration(std::vector<LayerMove> moves, const MigrationOptions& options,
                     MovableExperts& experts, Communicator& world, ExpertCourier* courier)
    : moves_(std::move(moves)),
      options_(options),
      experts_(experts),
      world_(world),
      courier_(courier),
      progress_at_(std::chrono::steady_clock::now()) {
  CHECK(!moves_.empty());
  BeginChunk();
  thread_ = std::thread([this] { Run(); });
}

Migration::~Migration() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    state_changed_.notify_all();
    constexpr std::chrono::seconds kSoon{3};
    const auto ended = [this] { return state_ == State::kFailed || state_ == State::kEnded; };
    if (!state_changed_.wait_for(lock, kSoon, ended))
      LOG_WARNING("[EPLB] rank {}: waiting for an expert that is still being loaded",
                  world_.rank());
  }
  thread_.join();  // the thread uses the model, so it cannot be detached
}

size_t Migration::ChunkEnd(size_t begin) const {
  if (options_.layers_per_chunk <= 0) return moves_.size();
  return std::min(moves_.size(), begin + options_.layers_per_chunk);
}

void Migration::Run() {
  LowerThreadPriority();
  bool failed = false;
  std::string failure;
  try {
    for (size_t begin = 0; begin < moves_.size(); begin = ChunkEnd(begin))
      PrepareChunk(begin, ChunkEnd(begin));
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    failed = true;
    failure = error.what();
  }
  FreeUnused();
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    state_ = failed ? State::kFailed : State::kEnded;
  }
  state_changed_.notify_all();
}

// Frees experts that no pass will use. The mutex is released first, because freeing may take time.
void Migration::FreeUnused() {
  std::map<int, MovableExperts::Arrived> arrived;
  std::vector<PreparedLayer> prepared;
  std::vector<OwnedExpert> retired;
  const std::lock_guard lock(mutex_);
  arrived.swap(arrived_);
  prepared.swap(prepared_);
  retired.swap(retired_);
}

// Prepares layers [begin, end) of the migration. Returns when they have switched and the replaced
// experts have been freed.
void Migration::PrepareChunk(size_t begin, size_t end) {
  std::map<int, MovableExperts::Arrived> arrived;
  {
    std::unique_lock lock(mutex_);
    state_changed_.wait(lock, [this] { return stop_ || all_arrived_; });
    if (stop_) throw Stopped();
    arrived = std::exchange(arrived_, {});
  }
  std::vector<PreparedLayer> chunk;
  for (size_t i = begin; i < end; ++i)
    chunk.push_back(
        experts_.Prepare(moves_[i].layer, moves_[i].placement, arrived[moves_[i].layer],
                         [this](size_t bytes) { Throttle(static_cast<int64_t>(bytes)); }));
  std::vector<OwnedExpert> retired;
  {
    std::unique_lock lock(mutex_);
    prepared_ = std::move(chunk);
    state_ = State::kReady;
    state_changed_.wait(lock, [this] { return stop_ || state_ == State::kLoading; });
    if (stop_) throw Stopped();
    retired = std::exchange(retired_, {});
  }
}

// Waits until the byte budget of the passes allows another expert load. Each step allows at least
// one expert, however large the expert is.
void Migration::Throttle(int64_t bytes) {
  std::unique_lock lock(mutex_);
  state_changed_.wait(lock, [this] { return stop_ || budget_ > 0; });
  if (stop_) throw Stopped();
  budget_ -= bytes;
  ++started_;
}

bool Migration::Step() {
  RankStatus mine{.timed_out = overdue_, .batches = courier_ ? courier_->batches_done() : 0};
  {
    const std::lock_guard lock(mutex_);
    mine.state = state_;
    mine.why = Utf8Prefix<sizeof mine.why>(failure_);
    mine.loaded = started_ + (courier_ ? courier_->pieces() : 0);
    budget_ = std::min(options_.bytes_per_step, budget_ + options_.bytes_per_step);
  }
  state_changed_.notify_all();
  std::vector<RankStatus> all(world_.size());
  world_.AllGather(&mine, all.data(), sizeof mine);
  // Read before Decide, which may start another chunk: `all` has no status of that chunk yet.
  const bool was_transferring = transferring_;
  if (error_.empty()) Decide(all);
  if (error_.empty() && was_transferring) StepTransfers(all);
  // The migration goes on while the thread of any rank runs. A thread ends after its last chunk has
  // been switched.
  return std::ranges::any_of(all, [](const RankStatus& l) {
    return l.state == State::kLoading || l.state == State::kReady;
  });
}

// Called on the rank's thread. For the first chunk, called before the loading thread exists.
void Migration::BeginChunk() {
  transferring_ = courier_ != nullptr;
  if (transferring_) {
    std::vector<ExpertCourier::LayerBatches> layers;
    for (size_t i = moved_; i < ChunkEnd(moved_); ++i) {
      const auto& [layer, placement] = moves_[i];
      layers.push_back({layer, PlanTransfers(experts_.PlacementOf(layer).physical_to_logical(),
                                             placement.physical_to_logical(), options_.topology)
                                   .batches});
    }
    courier_->Begin(layers, moves_[moved_].placement.num_physical(),
                    [this](int layer, int local) { return experts_.Held(layer, local); });
  }
  const std::lock_guard lock(mutex_);
  all_arrived_ = !transferring_;
}

void Migration::StepTransfers(const std::vector<RankStatus>& all) {
  courier_->Step(std::ranges::min(all, {}, &RankStatus::batches).batches);
  if (courier_->active()) return;
  transferring_ = false;
  {
    const std::lock_guard lock(mutex_);
    arrived_ = courier_->Take();
    all_arrived_ = true;
  }
  state_changed_.notify_all();
}

// `all` is equal on every rank, so all ranks make the same decision.
void Migration::Decide(const std::vector<RankStatus>& all) {
  const auto failed = std::ranges::find(all, State::kFailed, &RankStatus::state);
  if (failed != all.end()) {
    const std::lock_guard lock(mutex_);
    const auto rank = failed - all.begin();
    return AbortMigration(
        fmt::format("rank {} could not load an expert: {}", rank,
                    rank == world_.rank() ? failure_.c_str() : failed->why.data()));
  }
  if (all.front().timed_out) {
    timed_out_ = true;
    const std::lock_guard lock(mutex_);
    return AbortMigration(
        fmt::format("no rank has made progress for {} s", options_.timeout.count()));
  }
  if (std::ranges::all_of(all, [](const RankStatus& l) { return l.state == State::kReady; }))
    SwitchChunk();
  overdue_ = world_.rank() == 0 && moved_ < moves_.size() && Overdue(all);
}

bool Migration::Overdue(const std::vector<RankStatus>& all) {
  auto progress = static_cast<int64_t>(moved_);
  for (const RankStatus& line : all) progress += line.loaded;
  const auto now = std::chrono::steady_clock::now();
  ++steps_without_progress_;
  if (std::exchange(last_progress_, progress) != progress) {
    progress_at_ = now;
    steps_without_progress_ = 0;
  }
  return steps_without_progress_ >= kMinStalledSteps && now - progress_at_ > options_.timeout;
}

// Requires the mutex. The loading thread then frees the experts that it has prepared.
void Migration::AbortMigration(std::string why) {
  error_ = std::move(why);
  if (courier_ && transferring_) arrived_ = courier_->Cancel();
  stop_ = true;
  state_changed_.notify_all();
}

void Migration::SwitchChunk() {
  const auto began = std::chrono::steady_clock::now();
  std::vector<PreparedLayer> chunk;
  {
    const std::lock_guard lock(mutex_);
    chunk = std::exchange(prepared_, {});
  }
  std::vector<OwnedExpert> old;
  for (PreparedLayer& layer : chunk) {
    loaded_ += layer.loaded;
    received_ += layer.received;
    std::ranges::move(experts_.Switch(std::move(layer)), std::back_inserter(old));
  }
  moved_ += chunk.size();
  if (moved_ < moves_.size()) BeginChunk();
  {
    const std::lock_guard lock(mutex_);
    retired_ = std::move(old);
    state_ = State::kLoading;
  }
  state_changed_.notify_all();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  longest_switch_ = std::max(longest_switch_, took.count());
}

}  // namespace switchyard
