#include "server/ranks/rank_changes.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/device/arena_layout.h"
#include "core/error.h"
#include "core/format.h"
#include "engine/memory_plan.h"
#include "engine/request.h"
#include "server/front/rank_spec.h"
#include "server/ranks/served_layout.h"

namespace switchyard {
namespace {

LayoutSizes SizesOf(const MeshShape& mesh, const EnginePlan& plan) {
  return {.mesh = mesh,
          .num_pages = plan.num_pages,
          .max_running_requests = plan.max_running_requests,
          .chunked_prefill_size = plan.chunked_prefill_size};
}

bool SameShape(const MeshShape& a, const MeshShape& b) {
  return a.tp == b.tp && a.ep == b.ep && a.dp == b.dp;
}

std::vector<int> AllRanks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// "1, 2, 4 to 7" of ascending numbers.
std::string Ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    parts.push_back(end == i + 1 ? std::to_string(numbers[i])
                                 : fmt::format("{} to {}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return Joined(parts, ", ");
}

// Planned memory of all ranks and spares in bytes, without mapped weights, because two layouts
// share the pages of those.
size_t OwnBytes(const EngineConfig& config, const EnginePlan& plan) {
  const size_t weights = CopiesWeights(config, plan) ? plan.weight_bytes_per_rank : 0;
  return (weights + plan.kv_bytes_per_rank + plan.symmetric_bytes_per_rank) *
             static_cast<size_t>(config.mesh.world()) +
         weights * static_cast<size_t>(config.spare_ranks);
}

// Whether the request keeps the present layout: it restarts ranks, or removes and adds the same
// number of ranks.
bool KeepsLayout(const ScaleRequest& request) {
  return request.restarts() || (!request.sizes() && std::ssize(request.leave) == request.come);
}

}  // namespace

RankChanges::RankChanges(Options options, const ServedRanks& served, Front& front)
    : options_(std::move(options)),
      checkpoint_(CheckpointConfig::Read(options_.config.model_path)),
      served_(served),
      front_(front),
      sizes_(SizesOf(options_.config.mesh, options_.plan)),
      plan_(options_.plan),
      bytes_(OwnBytes(options_.config, options_.plan)),
      base_(sizes_.mesh),
      model_path_(options_.config.model_path),
      load_format_(options_.config.load_format),
      weights_(options_.weights),
      location_(options_.config.moe.init_expert_location) {
  state_.present = state_.pending = sizes_.mesh;
}

LayoutSizes RankChanges::sizes() const {
  const std::lock_guard lock(mutex_);
  return sizes_;
}

ScaleState RankChanges::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

EngineConfig RankChanges::ConfigOf(const MeshShape& mesh) const {
  EngineConfig config = options_.config;
  config.mesh = mesh;
  const std::lock_guard lock(mutex_);
  config.model_path = model_path_;
  config.load_format = load_format_;
  return config;
}

EnginePlan RankChanges::PlanOf(const Machine& machine, const MeshShape& mesh) const {
  if (mesh.tp < 1 || mesh.tp > kMaxRanksPerArena)
    throw Invalid("{} ranks: want 1 to {}", mesh.tp, kMaxRanksPerArena);
  const EngineConfig config = ConfigOf(mesh);
  EnginePlan plan = MakePlanOn(machine, options_.plan.model, config, mesh.tp);
  // Maximum tokens of a request that the front has accepted. Such a request must also fit in the
  // cache of the new layout.
  const int64_t longest = std::min(plan.context_length, options_.plan.num_pages * config.page_size);
  if (plan.num_pages * config.page_size < longest)
    throw Invalid(
        "the cache of an attention group would have {} tokens, but a request may have {}: start "
        "the server with a smaller --context-length or --max-total-tokens",
        plan.num_pages * config.page_size, longest);
  return plan;
}

const std::string& RankChanges::ValidWorlds(const Present& present) {
  if (worlds_ && SameShape(worlds_->of.mesh, present.mesh) &&
      SameShape(worlds_->of.base, present.base) &&
      worlds_->of.mesh.dense_tp == present.mesh.dense_tp)
    return worlds_->text;
  std::vector<int> valid;
  for (int tp = 1; tp <= kMaxRanksPerArena; ++tp) {
    try {
      PlanOf(options_.machine, ScaledShape({.tp = tp}, present.mesh, present.base));
      valid.push_back(tp);
    } catch (const Error&) {  // no valid layout has `tp` ranks
    }
  }
  return worlds_.emplace(Worlds{present, Ranges(valid)}).text;
}

std::optional<EnginePlan> RankChanges::CheckedPlan(const ScaleRequest& request,
                                                   const Present& present, MeshShape* next) {
  try {
    *next = ScaledShape(request, present.mesh, present.base);
    if (SameShape(present.mesh, *next)) return std::nullopt;
    return PlanOf(options_.machine, *next);
  } catch (const Error& error) {
    throw Invalid("{}; if only new_tp_size is set, it may be {}", error.what(),
                  ValidWorlds(present));
  }
}

// Whether the memory suffices for ranks of the new layout and the present ranks at the same time.
// --mem-fraction-static limits the sum of both.
bool RankChanges::FitsBeside(const EnginePlan& plan, const MeshShape& next,
                             const Present& present) const {
  Machine machine = ThisMachine(ConfigOf(next), next.tp);
  const auto share = static_cast<int64_t>(static_cast<double>(machine.memory.total) *
                                          options_.config.mem_fraction_static);
  machine.memory.available =
      std::min(machine.memory.available, share - static_cast<int64_t>(present.bytes));
  try {
    return PlanOf(machine, next).num_pages >= plan.num_pages;
  } catch (const Error&) {
    return false;
  }
}

void RankChanges::End(const ChangeOutcome& outcome, const std::optional<EnginePlan>& plan,
                      ScaleResult* result) {
  result->error = outcome.error;
  result->unavailable = outcome.kind == ErrorKind::kUnavailable;
  result->changed = outcome.error.empty();
  result->pauses = outcome.pauses;
  result->seconds = outcome.seconds;
  const EngineConfig config = ConfigOf(result->after);
  const std::lock_guard lock(mutex_);
  if (plan && outcome.error.empty()) {
    sizes_ = SizesOf(result->after, *plan);
    plan_ = *plan;
    bytes_ = OwnBytes(config, *plan);
    location_ = options_.config.moe.init_expert_location;
    if (sizes_.mesh.tp > 1) base_ = sizes_.mesh;
  }
  state_ = {.present = sizes_.mesh, .pending = sizes_.mesh, .last_error = outcome.error};
}

PlannedChange RankChanges::RestartOf(const ScaleRequest& request, ScaleResult* result) const {
  if (request.beside)
    throw ParameterError("load_beside",
                         "applies to changes of the number of ranks, not to a restart");
  PlannedChange change;
  std::vector<int> ranks = request.restarts() ? request.restart : request.leave;
  // Not all ranks on GPUs can begin another epoch (KeepsGpuWeights). So all of them restart.
  const bool all_end = options_.plan.cuda;
  if (request.restart_all || all_end) ranks = AllRanks(result->before.tp);
  if (request.restarts() && !all_end) {
    for (const int rank : ranks) change.rounds.push_back({rank});
  } else {
    change.rounds.push_back(ranks);
  }
  change.what = fmt::format("the planned restart of rank {}", Joined(ranks, ", "));
  result->loaded = std::move(ranks);
  return change;
}

PlannedChange RankChanges::SwitchTo(const ScaleRequest& request, const EnginePlan& plan,
                                    const Present& present, ScaleResult* result) const {
  PlannedChange change;
  const bool fits = FitsBeside(plan, result->after, present);
  if (request.beside.value_or(false) && !fits)
    throw ParameterError("load_beside",
                         "is true, but the memory does not suffice for both layouts together");
  change.what = fmt::format("the change from {} to {}", DescribeShape(result->before),
                            DescribeShape(result->after));
  change.beside = result->beside = request.beside.value_or(fits);
  RankJob job{ConfigOf(result->after), plan};
  Membership membership{.job = EncodeRankSpec(job.config, job.plan)};
  change.layout = std::make_shared<ServedLayout>(served_, std::move(job), present.weights,
                                                 std::move(membership), /*checks=*/true);
  result->loaded = AllRanks(result->after.tp);
  result->outputs_stay_equal = OutputsStayEqual(result->before, result->after, options_.config.moe);
  return change;
}

bool RankChanges::Scale(const ScaleRequest& request, std::function<void(const ScaleResult&)> done) {
  if (!options_.refusal.empty()) throw Invalid("{}", options_.refusal);
  std::unique_lock checks(change_mutex_, std::try_to_lock);
  if (!checks) return false;
  Present present;
  {
    const std::lock_guard lock(mutex_);
    if (state_.running || changes_weights_) return false;
    if (released_.any())
      throw Error(ErrorKind::kUnavailable, "the memory of the ranks is released",
                  "POST /resume_memory_occupation first");
    present = {.mesh = sizes_.mesh, .base = base_, .bytes = bytes_, .weights = weights_};
  }
  const MeshShape now = present.mesh;
  CheckScale(request, now);
  if (const std::string changes = DescribeChanges(present.weights); !changes.empty())
    throw Invalid("the ranks cannot load other weights{}", changes);

  PlannedChange change;
  std::optional<EnginePlan> plan;
  ScaleResult result{.before = now, .after = now};
  if (KeepsLayout(request)) {
    change = RestartOf(request, &result);
  } else if (options_.plan.cuda) {
    throw Invalid("on GPUs the number of ranks cannot change; only restart is supported");
  } else {
    plan = CheckedPlan(request, present, &result.after);
    if (!plan) {
      checks.unlock();
      done(result);
      return true;
    }
    change = SwitchTo(request, *plan, present, &result);
  }
  const MeshShape next = result.after;
  // End takes the lock too, so it publishes its result after this function.
  const std::lock_guard lock(mutex_);
  const bool begun = supervisor_->Begin(
      std::move(change), [this, plan = std::move(plan), result = std::move(result),
                          done = std::move(done)](const ChangeOutcome& outcome) mutable {
        End(outcome, plan, &result);
        done(result);
      });
  if (!begun)
    throw Error(ErrorKind::kUnavailable,
                "the server cannot restart its ranks now: it is shutting down, or another change "
                "is in progress");
  state_ = {.running = true, .present = now, .pending = next};
  checks.unlock();  // before mutex_, so that a request right after the change is not refused
  return true;
}

}  // namespace switchyard
