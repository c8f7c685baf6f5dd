#include "eplb/migration.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "eplb/background.h"

namespace switchyard {
namespace {

struct Stopped {};  // ends the thread in the middle of a layer

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
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  news_.notify_all();
  thread_.join();
}

size_t Migration::ChunkEnd(size_t begin) const {
  if (options_.layers_per_chunk <= 0) return moves_.size();
  return std::min(moves_.size(), begin + options_.layers_per_chunk);
}

void Migration::Run() {
  WorkInTheBackground();
  std::string failure;
  try {
    for (size_t begin = 0; begin < moves_.size(); begin = ChunkEnd(begin))
      PrepareChunk(begin, ChunkEnd(begin));
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex_);
  prepared_.clear();
  failure_ = std::move(failure);
  state_ = failure_.empty() ? State::kEnded : State::kFailed;
}

// Returns when the chunk has been taken, and what it replaced is gone.
void Migration::PrepareChunk(size_t begin, size_t end) {
  std::map<int, MovableExperts::Arrived> arrived;
  {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [this] { return stop_ || all_here_; });
    if (stop_) throw Stopped();
    arrived = std::exchange(arrived_, {});
  }
  std::vector<PreparedLayer> chunk;
  for (size_t i = begin; i < end; ++i)
    chunk.push_back(experts_.Prepare(moves_[i].layer, moves_[i].placement, arrived[moves_[i].layer],
                                     [this](size_t bytes) { Pace(static_cast<int64_t>(bytes)); }));
  std::vector<OwnedExpert> retired;
  {
    std::unique_lock lock(mutex_);
    prepared_ = std::move(chunk);
    state_ = State::kReady;
    news_.wait(lock, [this] { return stop_ || state_ == State::kLoading; });
    if (stop_) throw Stopped();
    retired = std::exchange(retired_, {});
  }
}

// A step's budget lets one expert begin at least, however large it is.
void Migration::Pace(int64_t bytes) {
  std::unique_lock lock(mutex_);
  news_.wait(lock, [this] { return stop_ || budget_ > 0; });
  if (stop_) throw Stopped();
  budget_ -= bytes;
  ++started_;
}

bool Migration::Step() {
  Line mine{.timed_out = overdue_, .batches = courier_ ? courier_->batches_done() : 0};
  {
    const std::lock_guard lock(mutex_);
    mine.state = state_;
    mine.loaded = started_ + (courier_ ? courier_->pieces() : 0);
    budget_ = std::min(options_.bytes_per_step, budget_ + options_.bytes_per_step);
  }
  news_.notify_all();
  std::vector<Line> all(world_.size());
  world_.AllGather(&mine, all.data(), sizeof mine);
  const bool carrying = carrying_;  // lines say nothing of a chunk that Decide begins
  if (error_.empty()) Decide(all);
  if (error_.empty() && carrying) Carry(all);
  // A thread ends by itself when the last chunk has been taken.
  return std::ranges::any_of(
      all, [](const Line& l) { return l.state == State::kLoading || l.state == State::kReady; });
}

// The rank's thread, which has the first chunk before there is another thread.
void Migration::BeginChunk() {
  carrying_ = courier_ != nullptr;
  if (carrying_) {
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
  all_here_ = !carrying_;
}

void Migration::Carry(const std::vector<Line>& all) {
  courier_->Step(std::ranges::min(all, {}, &Line::batches).batches);
  if (courier_->active()) return;
  carrying_ = false;
  {
    const std::lock_guard lock(mutex_);
    arrived_ = courier_->Take();
    all_here_ = true;
  }
  news_.notify_all();
}

// Lines are the same on every rank, so all do the same.
void Migration::Decide(const std::vector<Line>& all) {
  const auto failed = std::ranges::find(all, State::kFailed, &Line::state);
  if (failed != all.end()) {
    const std::lock_guard lock(mutex_);
    return GiveUp(!failure_.empty()
                      ? failure_
                      : fmt::format("rank {} could not load an expert", failed - all.begin()));
  }
  if (all.front().timed_out) {
    timed_out_ = true;
    const std::lock_guard lock(mutex_);
    return GiveUp(fmt::format("no rank has made progress for {} s", options_.patience.count()));
  }
  if (std::ranges::all_of(all, [](const Line& l) { return l.state == State::kReady; }))
    SwitchChunk();
  overdue_ = world_.rank() == 0 && moved_ < moves_.size() && Overdue(all);
}

bool Migration::Overdue(const std::vector<Line>& all) {
  auto progress = static_cast<int64_t>(moved_);
  for (const Line& line : all) progress += line.loaded;
  const auto now = std::chrono::steady_clock::now();
  if (std::exchange(last_progress_, progress) != progress) progress_at_ = now;
  return now - progress_at_ > options_.patience;
}

// With the mutex.
void Migration::GiveUp(std::string why) {
  error_ = std::move(why);
  if (courier_) courier_->Cancel();
  stop_ = true;
  prepared_.clear();
  news_.notify_all();
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
  news_.notify_all();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  longest_switch_ = std::max(longest_switch_, took.count());
}

}  // namespace switchyard
