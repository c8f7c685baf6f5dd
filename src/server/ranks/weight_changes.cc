// The changes of RankChanges that concern weights and memory.
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "core/log.h"
#include "engine/memory_plan.h"
#include "server/front/rank_spec.h"
#include "server/ranks/rank_changes.h"
#include "server/ranks/served_layout.h"

namespace switchyard {
namespace {

constexpr const char* kBusy =
    "the server cannot change its ranks now: it is shutting down, or another change is in progress";

std::string Names(MemoryTags tags) {
  return tags.weights && tags.kv_cache ? "weights and KV cache"
                                       : (tags.weights ? "weights" : "KV cache");
}

}  // namespace

WeightsState RankChanges::weights_state() const {
  const std::lock_guard lock(mutex_);
  return {.model_path = model_path_,
          .load_format = load_format_,
          .released = released_,
          .changing = changes_weights_};
}

// Calls `start` unless another change is in progress. If it throws, the change has ended.
bool RankChanges::StartWeights(const std::function<void()>& start) {
  if (!options_.refusal.empty()) throw Invalid("{}", options_.refusal);
  const std::unique_lock checks(change_mutex_, std::try_to_lock);
  if (!checks) return false;
  {
    const std::lock_guard lock(mutex_);
    if (state_.running || changes_weights_) return false;
    changes_weights_ = true;
  }
  try {
    start();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    changes_weights_ = false;
    throw;
  }
  return true;
}

// Calls `begin` when location_ has the present placement of experts. If `begin` throws, the change
// ends with this error.
void RankChanges::AskPlacement(std::function<void()> begin, const Done& done) {
  auto next = [this, begin = std::move(begin), done] {
    try {
      begin();
    } catch (const std::exception& error) {
      EndWeights({.error = error.what(), .released = weights_state().released}, std::nullopt);
      done({.error = error.what()});
    }
  };
  if (!options_.config.eplb.enable) return next();
  front_.GetEplb(
      [this, next = std::move(next)](const EplbReport& report) {
        if (report.refused.empty()) {
          const std::lock_guard lock(mutex_);
          const ModelConfig& model = plan_.model;
          const int64_t slots = model.num_layers() * (model.moe->router.num_experts +
                                                      options_.config.moe.num_redundant_experts);
          // While ranks are absent, the placement is that of a smaller layout.
          if (std::ssize(report.slots) == slots)
            location_ = LocationOf(report.slots, model.num_layers());
        }
        next();
      },
      WhenHeld::kFail, /*slots=*/true);
}

PlannedChange RankChanges::UpdateTo(const WeightUpdate& update, const NewWeights& weights) {
  Present present;
  RankJob job{weights.config, {}};
  bool released = false;
  {
    const std::lock_guard lock(mutex_);
    present = {.mesh = sizes_.mesh, .base = base_, .bytes = bytes_};
    job.plan = plan_;
    job.config.mesh = sizes_.mesh;
    job.config.moe.init_expert_location = location_;
    released = released_.any();
  }
  PlannedChange change{
      .what = fmt::format("the update of the weights from {}", job.config.model_path.string()),
      // The cache of ranks on GPUs takes the memory that other ranks would need.
      .beside = !released && !job.plan.cuda && FitsBeside(job.plan, present.mesh, present),
      .drains = true,
      .aborts = update.abort_all};
  if (update.version)
    change.on_switched = [this, version = *update.version] { front_.SetWeightVersion(version); };
  Membership membership{.job = EncodeRankSpec(job.config, job.plan)};
  change.layout = std::make_shared<ServedLayout>(served_, std::move(job), weights.files,
                                                 std::move(membership), /*checks=*/true);
  return change;
}

// `weights`: the weights after the change, if it replaces them.
void RankChanges::BeginWeights(PlannedChange change, std::optional<NewWeights> weights,
                               const Done& done) {
  const bool begun = supervisor_->Begin(
      std::move(change), [this, weights = std::move(weights), done](const ChangeOutcome& outcome) {
        EndWeights(outcome, weights);
        done({.error = outcome.error,
              .unavailable = outcome.kind == ErrorKind::kUnavailable,
              .waiting = outcome.waiting,
              .seconds = outcome.seconds});
      });
  if (begun) return;
  {
    const std::lock_guard lock(mutex_);
    changes_weights_ = false;
  }
  done({.error = kBusy, .unavailable = true});
}

void RankChanges::EndWeights(const ChangeOutcome& outcome,
                             const std::optional<NewWeights>& weights) {
  const std::lock_guard lock(mutex_);
  changes_weights_ = false;
  released_ = outcome.released;
  if (!outcome.error.empty() || !weights) return;
  model_path_ = weights->config.model_path;
  load_format_ = weights->config.load_format;
  weights_ = weights->files;
  overlay_ = weights->overlay;
}

bool RankChanges::Update(const WeightUpdate& update, Done done) {
  return StartWeights([&] {
    NewWeights weights = CheckNewWeights(options_.config, checkpoint_, update, weights_state());
    if (options_.plan.cuda && FindGguf(weights.config.model_path))
      throw Invalid("{} is a GGUF model, which runs on CPUs only",
                    weights.config.model_path.string());
    AskPlacement([this, update, weights = std::move(weights),
                  done] { BeginWeights(UpdateTo(update, weights), weights, done); },
                 done);
  });
}

bool RankChanges::Release(MemoryTags tags, Done done) {
  return StartWeights([&] {
    if (!tags.weights && !weights_state().released.weights) {
      // Without the cache the ranks load again, so the present weights must exist.
      std::string changes;
      {
        const std::lock_guard lock(mutex_);
        changes = DescribeChanges(weights_);
      }
      if (!changes.empty())
        throw Invalid("the ranks could not load the present weights again{}", changes);
    }
    const auto begin = [this, tags, done] {
      // Ranks keep their weights if the cache is in memory that outlives them (StartRanks), or on
      // GPUs (Supervisor::Options::ranks_free_cache).
      const bool keeps = !options_.config.disable_radix_cache;
      std::vector<int> ending(keeps ? 0 : sizes().mesh.tp);
      std::iota(ending.begin(), ending.end(), 0);
      BeginWeights({.what = fmt::format("the release of {}", Names(tags)),
                    .rounds = {std::move(ending)},
                    .drains = true,
                    .memory = tags},
                   std::nullopt, done);
    };
    AskPlacement(begin, done);
  });
}

bool RankChanges::Resume(MemoryTags tags, Done done) {
  return StartWeights([&] {
    BeginWeights(
        {.what = fmt::format("the return of {}", Names(tags)), .memory = tags, .resumes = true},
        std::nullopt, done);
  });
}

}  // namespace switchyard
