#include "server/offline/local_weights.h"

#include <malloc.h>

#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "core/blocked_signals.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/host_memory.h"
#include "engine/memory_plan.h"

namespace switchyard::offline {
namespace {

using SteadyClock = std::chrono::steady_clock;

Error Stopped() { return Error(ErrorKind::kUnavailable, "the engine is shutting down"); }

}  // namespace

void LocalLink::Send(const std::vector<ControlMessage>& messages) {
  const std::lock_guard lock(mutex_);
  if (ranks_) ranks_->Send(messages);
}

void LocalLink::Set(std::shared_ptr<LocalRanks> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = std::move(ranks);
}

// How ranks ended. If they have not served yet, Load throws `why`. Otherwise the front treats the
// ranks as lost.
struct LocalWeights::Life {
  std::mutex mutex;
  bool serves = false, ended = false;
  std::string why;
};

LocalWeights::LocalWeights(const ServerArgs& args, const EnginePlan& plan, Front& front,
                           LocalLink& link)
    : plan_(plan),
      checkpoint_(CheckpointConfig::Read(args.engine.model_path)),
      front_(front),
      link_(link),
      config_(args.engine) {}

std::shared_ptr<LocalRanks> LocalWeights::Load(const EngineConfig& config,
                                               const std::function<bool()>& interrupted) {
  life_ = std::make_shared<Life>();
  auto ranks = std::make_shared<LocalRanks>(
      config, plan_,
      LocalRanks::Events{
          .on_message = [this](const EngineMessage& message) { front_.OnMessage(message); },
          .on_lost =
              [this, life = life_](const std::string& why) {
                const std::lock_guard lock(life->mutex);
                life->ended = true;
                life->why = why;
                if (life->serves) front_.OnRanksLost(why);
              }});
  const bool ready = ranks->WaitReady(interrupted);
  if (!ready) ranks.reset();
  return ranks;
}

void LocalWeights::Serve(std::shared_ptr<LocalRanks> ranks) {
  ranks_ = std::move(ranks);
  link_.Set(ranks_);
  const std::lock_guard lock(life_->mutex);
  life_->serves = true;
  if (life_->ended) front_.OnRanksLost(life_->why);
}

bool LocalWeights::Start(const std::function<bool()>& interrupted) {
  auto ranks = Load(config_, interrupted);
  if (!ranks) return false;
  Serve(std::move(ranks));
  return true;
}

void LocalWeights::Stop() {
  stopping_ = true;
  {
    const std::lock_guard lock(thread_mutex_);
    if (thread_.joinable()) thread_.join();
  }
  if (ranks_) ranks_->Stop();
}

WeightsState LocalWeights::weights_state() const {
  const std::lock_guard lock(mutex_);
  return {
      .model_path = config_.model_path, .load_format = config_.load_format, .released = released_};
}

// Ends the ranks and frees their memory. Requests and queries stay in the front.
void LocalWeights::Unload() {
  const auto now = SteadyClock::now();
  // Stop the ranks first, so that none of their messages reaches the front during PauseForChange.
  if (ranks_) ranks_->Stop();
  front_.PauseForChange(now, config_.mesh.attention_groups());
  link_.Set(nullptr);
  ranks_.reset();
  malloc_trim(0);
}

// Waits until the requests that are open now have ended. Later ones wait.
void LocalWeights::Drain(bool aborts) {
  if (weights_state().released.any()) return;  // the requests wait already
  front_.HoldNew();
  if (aborts) front_.AbortAll();
  while (!front_.Drained() && !front_.controls().paused) {  // paused requests do not end
    if (stopping_) throw Stopped();
    if (front_.ranks_lost()) throw Error(ErrorKind::kUnavailable, "the engine has lost its ranks");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Whether the memory suffices for the present ranks and for new ones.
bool LocalWeights::HasRoom(const EngineConfig& config) const {
  const size_t weights = CopiesWeights(config, plan_) ? plan_.weight_bytes_per_rank : 0;
  const size_t bytes = (weights + plan_.kv_bytes_per_rank + plan_.symmetric_bytes_per_rank) *
                       static_cast<size_t>(config.mesh.world());
  return static_cast<double>(ReadHostMemory().available) * config.mem_fraction_static >
         static_cast<double>(bytes);
}

// The present placement of experts, as --init-expert-location.
std::string LocalWeights::Placement() {
  const auto answer = std::make_shared<std::promise<EplbReport>>();
  front_.GetEplb([answer](const EplbReport& report) { answer->set_value(report); }, WhenHeld::kFail,
                 /*slots=*/true);
  const EplbReport report = answer->get_future().get();
  const std::lock_guard lock(mutex_);
  if (!report.refused.empty() || report.slots.empty()) return config_.moe.init_expert_location;
  return LocationOf(report.slots, plan_.model.num_layers());
}

// Loads the present weights again, after new ones have failed because of `why`.
void LocalWeights::LoadAgain(const std::string& why) {
  if (stopping_) throw Stopped();
  LOG_WARNING("{}; the last weights are loaded again", why);
  try {
    auto last = Load(config_, [this] { return stopping_.load(); });
    if (!last) throw Stopped();
    Serve(std::move(last));
  } catch (const std::exception& error) {
    front_.OnRanksLost(error.what());
    throw;
  }
}

void LocalWeights::Switch(const EngineConfig& next, const WeightUpdate& update) {
  EngineConfig config = next;
  const bool released = weights_state().released.any();
  if (config.eplb.enable) config.moe.init_expert_location = Placement();
  const auto stops = [this] { return stopping_.load(); };
  if (!weights_state().released.weights) {
    const std::shared_ptr<Life> life = life_;
    std::shared_ptr<LocalRanks> loaded;
    try {
      if (!released && HasRoom(config)) {
        loaded = Load(config, stops);
        if (!loaded) throw Stopped();
      }
      Drain(update.abort_all);
    } catch (...) {
      life_ = life;
      throw;
    }
    Unload();
    try {
      if (!loaded) loaded = Load(config, stops);
      if (!loaded) throw Stopped();
    } catch (const std::exception& error) {
      LoadAgain(error.what());
      if (!released) front_.Resume();
      throw;
    }
    Serve(std::move(loaded));
  }
  {
    const std::lock_guard lock(mutex_);
    config_ = config;
  }
  if (update.version) front_.SetWeightVersion(*update.version);
  if (!released) front_.Resume();
}

void LocalWeights::ReleaseNow(MemoryTags tags) {
  MemoryTags released = weights_state().released;
  const bool loaded = !released.weights, cached = !released.any();
  EngineConfig config = config_;
  if (config.eplb.enable && loaded) config.moe.init_expert_location = Placement();
  Drain(/*aborts=*/false);
  if (loaded && (tags.weights || (tags.kv_cache && cached))) Unload();
  released.weights |= tags.weights;
  released.kv_cache |= tags.kv_cache;
  {
    const std::lock_guard lock(mutex_);
    released_ = released;
    config_ = config;
  }
  if (released.weights || !cached) return;
  // The cache belongs to the ranks, so new ranks load the weights again.
  try {
    auto ranks = Load(config, [this] { return stopping_.load(); });
    if (!ranks) throw Stopped();
    Serve(std::move(ranks));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    released_.weights = true;  // Resume loads them
    throw;
  }
}

void LocalWeights::ResumeNow(MemoryTags tags) {
  MemoryTags released = weights_state().released;
  const bool waits = released.any();
  if (tags.weights && released.weights) {
    auto ranks = Load(config_, [this] { return stopping_.load(); });
    if (!ranks) throw Stopped();
    Serve(std::move(ranks));
    released.weights = false;
  }
  if (tags.kv_cache) released.kv_cache = false;
  {
    const std::lock_guard lock(mutex_);
    released_ = released;
  }
  if (waits && !released.any()) front_.Resume();
}

// `check` runs on this thread and may throw; its result is the change, which runs on another
// thread.
bool LocalWeights::Begin(const std::function<std::function<void()>()>& check, Done done) {
  if (plan_.cuda)
    throw Invalid(
        "on GPUs, an engine within a process cannot update its weights or release its memory: use "
        "switchyard serve");
  const std::lock_guard thread(thread_mutex_);
  if (stopping_) throw Stopped();
  {
    const std::lock_guard lock(mutex_);
    if (changing_) return false;
    changing_ = true;
  }
  if (thread_.joinable()) thread_.join();
  const auto end = [this] {
    front_.EndHold();
    const std::lock_guard lock(mutex_);
    changing_ = false;
  };
  std::function<void()> change;
  try {
    change = check();
  } catch (...) {
    end();
    throw;
  }
  const BlockedSignals blocked(BlockedSignals::Faults::kUnblocked);
  thread_ = std::thread([this, change = std::move(change), done = std::move(done), end] {
    const auto start = SteadyClock::now();
    WeightsResult result;
    try {
      change();
    } catch (const Error& error) {
      result.error = error.what();
      result.unavailable = error.kind() == ErrorKind::kUnavailable;
    } catch (const std::exception& error) {
      result.error = error.what();
    }
    result.waiting = front_.open();
    result.seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    end();
    done(result);
  });
  return true;
}

bool LocalWeights::Update(const WeightUpdate& update, Done done) {
  return Begin(
      [&]() -> std::function<void()> {
        const NewWeights weights = CheckNewWeights(config_, checkpoint_, update, weights_state());
        return [this, weights, update] {
          Switch(weights.config, update);
          overlay_ = weights.overlay;
        };
      },
      std::move(done));
}

bool LocalWeights::Release(MemoryTags tags, Done done) {
  return Begin([&] { return [this, tags] { ReleaseNow(tags); }; }, std::move(done));
}

bool LocalWeights::Resume(MemoryTags tags, Done done) {
  return Begin([&] { return [this, tags] { ResumeNow(tags); }; }, std::move(done));
}

}  // namespace switchyard::offline
