#include "eplb/manager.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "eplb/plan_job.h"
#include "eplb/transfers.h"

namespace switchyard {
namespace {

constexpr int kExtraWords = kNumFillFrom + 2;

// Rank 0's plan for the broadcast: physical_to_logical of all layers, the number of slots by source
// (FillFrom), the maximum number of transfer batches of a layer, and the number of layers that are
// not worth moving.
std::vector<int32_t> Encode(const Placement& previous, const Placement& plan,
                            const RankTopology& topology, int not_worth_moving) {
  std::vector<int32_t> words = plan.physical_to_logical;
  for (const int64_t count : CountFills(previous, plan, topology))
    words.push_back(static_cast<int32_t>(count));
  size_t batches = 0;
  for (int i = 0; i < plan.layers; ++i)
    batches =
        std::max(batches, PlanTransfers(previous.Layer(i), plan.Layer(i), topology).batches.size());
  words.push_back(static_cast<int32_t>(batches));
  words.push_back(not_worth_moving);
  return words;
}

RankTopology TopologyOf(const EplbShape& shape, int ranks) {
  return {.ranks = ranks,
          .nodes = ranks % shape.nodes == 0 ? shape.nodes : 1,
          .groups = std::max(1, shape.groups),
          .slots = shape.slots,
          .costs = shape.costs,
          .sources = shape.sources};
}

EplbAlgorithm AlgorithmFor(const EplbOptions& options, const EplbShape& shape, int ranks) {
  return ParseEplbAlgorithm(PlannerFor(options, shape.experts + shape.redundant, ranks,
                                       TopologyOf(shape, ranks).EqualRanks()));
}

std::string FormatBalancedness(std::optional<double> balancedness) {
  return balancedness ? fmt::format("{:.3f}", *balancedness) : "unknown";
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

EplbManager::EplbManager(const EplbOptions& options, const EplbShape& shape, RankComm& comm)
    : options_((Validate(options), options)),
      shape_(shape),
      comm_(comm),
      algorithm_(AlgorithmFor(options, shape, comm.mesh.ep())),
      topology_(TopologyOf(shape, comm.mesh.ep())),
      is_leader_(comm.mesh.tp_rank() == 0),
      trigger_(options.num_iterations),
      plan_(*comm.tp),
      courier_(comm) {
  Check(options, shape, comm.mesh.ep());
}

// Plans one layer with an even load, to detect unsupported configurations.
void EplbManager::Check(const EplbOptions& options, const EplbShape& shape, int ranks) {
  const int places = shape.experts + shape.redundant;
  const LoadHistory even{1, 1, shape.experts, std::vector<int32_t>(shape.experts, 1)};
  PlanPlacement(AlgorithmFor(options, shape, ranks),
                {.history = &even, .topology = TopologyOf(shape, ranks), .physical = places});
}

void EplbManager::Attach(MovableExperts* experts) {
  experts_ = experts;
  layers_ = experts->layers();
  const uint8_t mine = experts->sends() ? 1 : 0;
  std::vector<uint8_t> all(comm_.tp->size());
  comm_.tp->AllGather(&mine, all.data(), sizeof mine);
  sends_ = std::ranges::all_of(all, [](uint8_t sends) { return sends != 0; });
  index_of_.assign(shape_.layers, -1);
  for (size_t i = 0; i < layers_.size(); ++i) index_of_[layers_[i]] = static_cast<int>(i);
  window_.emplace(static_cast<int>(layers_.size()), shape_.experts, comm_.mesh.ep(),
                  ExpertMap(shape_.experts + shape_.redundant, comm_.mesh.ep(),
                            shape_.shared_dispatched, shape_.slots),
                  options_.num_iterations, *comm_.tp);
}

void EplbManager::OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) {
  if (!window_) return;
  if (tokens.streamed) return window_->SkipPass(pass);
  window_->Add(pass, index_of_[layer], tokens.logical, tokens.physical);
}

void EplbManager::OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) {
  if (!window_) return;
  if (counts.streamed) return window_->SkipPass(pass);
  window_->AddCounts(pass, index_of_[layer], counts.logical, counts.physical);
}

void EplbManager::AbortPass(uint64_t pass) { window_->AbortPass(pass); }

bool EplbManager::busy() const {
  return status_.state != EplbState::kIdle && status_.state != EplbState::kDone;
}

void EplbManager::BeginPass() {
  if (status_.state == EplbState::kPlanning) {
    ReceivePlan();
  } else if (busy()) {
    StepMigration();
  }
}

void EplbManager::EndPass(uint64_t pass) {
  ++status_.passes;
  const bool whole = window_->EndPass(pass);
  if (const auto due = trigger_.EndPasses(*window_, whole, busy()))
    ConsiderPlanning(due->name, due->steps);
}

std::string EplbManager::WhyNotRebalance() const {
  if (busy()) return fmt::format("a rebalance is already in progress ({})", Name(status_.state));
  if (window_->History(1).steps == 0)
    return fmt::format("no load has been counted yet; counts arrive every {} passes",
                       1 + (options_.num_iterations - 1) / LoadWindow::kSteps);
  return {};
}

std::string EplbManager::Rebalance() {
  if (std::string refused = WhyNotRebalance(); !refused.empty()) return refused;
  StartPlanning("request", RebalanceTrigger::RelevantSteps(*window_));
  return {};
}

// All ranks have equal sums, so they make the same decision.
void EplbManager::ConsiderPlanning(const char* trigger, int steps) {
  trigger_.Restart();
  const std::optional<double> balancedness = window_->MeanBalancedness();
  if (balancedness && *balancedness <= options_.min_utilization)
    return StartPlanning(trigger, steps);
  status_.last_result = fmt::format("nothing to do: balancedness {}, threshold {:.3f}",
                                    FormatBalancedness(balancedness), options_.min_utilization);
  window_->OnPlanned();
  if (is_leader_) LOG_INFO("[EPLB] {}", status_.last_result);
}

void EplbManager::StartPlanning(const char* trigger, int steps) {
  status_.state = EplbState::kPlanning;
  status_.trigger = trigger;
  status_.planned_at = window_->MeanBalancedness();
  began_ = std::chrono::steady_clock::now();
  window_->OnPlanned(steps);
  if (!is_leader_) return plan_.Start({});
  // A requested plan ignores the cost of moves.
  const bool on_request = status_.trigger == "request";
  plan_.Start([algorithm = algorithm_, topology = topology_, previous = Current(),
               history = window_->History(steps), on_request,
               dispatch = ParseEpDispatchAlgorithm(options_.dispatch)] {
    Placement plan = PlanPlacement(algorithm, {.history = &history,
                                               .topology = topology,
                                               .physical = previous.physical,
                                               .previous = &previous});
    ValidatePlacement(plan, topology);
    const int reset = on_request ? 0
                                 : ResetLayersNotWorthMoving(history, history.AllPasses(), dispatch,
                                                             topology, previous, &plan);
    return Encode(previous, plan, topology, reset);
  });
}

Placement EplbManager::Current() const {
  Placement placement(static_cast<int>(layers_.size()), shape_.experts + shape_.redundant,
                      shape_.experts);
  for (size_t i = 0; i < layers_.size(); ++i)
    std::ranges::copy(experts_->PlacementOf(layers_[i]).physical_to_logical(),
                      placement.Layer(static_cast<int>(i)).begin());
  return placement;
}

void EplbManager::ReceivePlan() {
  std::optional<PlanJob::Outcome> outcome =
      plan_.Poll(std::chrono::duration<double>(options_.watchdog_seconds));
  if (!outcome) return;
  ++status_.plans;
  status_.plan_seconds = Seconds(began_);
  if (!outcome->error.empty()) return Fail(outcome->error, outcome->timed_out);
  Placement plan = Current();
  std::vector<int32_t>& words = outcome->plan;
  const auto places = static_cast<std::ptrdiff_t>(plan.physical_to_logical.size());
  CHECK_EQ(std::ssize(words), places + kExtraWords);
  not_worth_moving_ = words.back();
  status_.transfer_batches = words[words.size() - 2];
  status_.fills = {words.begin() + places, words.end() - 2};
  words.resize(places);
  plan.physical_to_logical = std::move(words);
  StartMigration(plan);
}

void EplbManager::StartMigration(const Placement& plan) {
  const Placement now = Current();
  std::vector<LayerMove> moves;
  for (int i = 0; i < plan.layers; ++i)
    if (!std::ranges::equal(plan.Layer(i), now.Layer(i)))
      moves.push_back({layers_[i], plan.ToExpertPlacement(i)});
  status_.layers_done = 0;
  status_.layers_to_move = static_cast<int32_t>(moves.size());
  status_.move_passes = 0;
  const auto fills = [this](FillFrom from) { return status_.fills[static_cast<size_t>(from)]; };
  if (is_leader_)
    LOG_INFO(
        "[EPLB] plan {} ({}, {}) in {:.1f} ms at balancedness {}: {} of {} layers change ({} would "
        "gain less than they cost), {} experts arrive ({} held by other nodes only), {} move "
        "within their rank",
        status_.plans, options_.algorithm, status_.trigger, status_.plan_seconds * 1e3,
        FormatBalancedness(status_.planned_at), moves.size(), plan.layers, not_worth_moving_,
        fills(FillFrom::kSameNode) + fills(FillFrom::kOtherNode), fills(FillFrom::kOtherNode),
        fills(FillFrom::kSameRank) + fills(FillFrom::kFreeRider));
  began_ = std::chrono::steady_clock::now();
  if (moves.empty()) return Finish();
  status_.state = EplbState::kAgreed;
  migration_ = std::make_unique<Migration>(
      std::move(moves),
      MigrationOptions{.layers_per_chunk = options_.layers_per_chunk,
                       .timeout = std::chrono::duration<double>(options_.watchdog_seconds),
                       .topology = topology_},
      *experts_, *comm_.tp, sends_ ? &courier_ : nullptr);
}

void EplbManager::StepMigration() {
  ++status_.move_passes;
  const bool more = migration_->Step();
  if (!migration_->error().empty() && status_.state != EplbState::kStopping)
    LOG_WARNING("[EPLB] rank {}: migration aborted: {}", comm_.mesh.rank(), migration_->error());
  status_.state = migration_->error().empty() ? EplbState::kMoving : EplbState::kStopping;
  status_.layer = migration_->layer();
  if (const auto moved = migration_->layers_moved() - status_.layers_done; moved > 0) {
    window_->OnMoved();
    switches_ += moved;
  }
  status_.layers_done = migration_->layers_moved();
  if (!more) Finish();
}

// Called when there is nothing to move, or when the migration has ended on all ranks.
void EplbManager::Finish() {
  status_.state = EplbState::kDone;
  status_.layer = -1;
  status_.move_seconds = Seconds(began_);
  trigger_.Restart();
  if (!migration_) {
    status_.last_result =
        not_worth_moving_ > 0
            ? fmt::format("nothing to move: {} layers would gain less than they cost",
                          not_worth_moving_)
            : "nothing to move: the plan equals the current placement";
    return;
  }
  const std::unique_ptr<Migration> ended = std::move(migration_);
  status_.layers_moved += ended->layers_moved();
  status_.experts_loaded += ended->experts_loaded();
  status_.experts_received += ended->experts_received();
  status_.longest_switch_seconds = ended->longest_switch_seconds();
  if (!ended->error().empty())
    return Fail(fmt::format("{} (after {} of {} layers)", ended->error(), status_.layers_done,
                            status_.layers_to_move),
                ended->timed_out());
  ++status_.rebalances;
  status_.last_result = fmt::format(
      "{} layers moved, rank {} loaded {} experts and received {}, in {} passes and {:.1f} ms",
      status_.layers_done, comm_.mesh.rank() - comm_.mesh.tp_rank(), ended->experts_loaded(),
      ended->experts_received(), status_.move_passes, status_.move_seconds * 1e3);
  if (is_leader_) LOG_INFO("[EPLB] rebalance {} done: {}", status_.rebalances, status_.last_result);
}

void EplbManager::Fail(const std::string& why, bool timed_out) {
  status_.state = EplbState::kIdle;
  status_.layer = -1;
  status_.last_failure = why;
  status_.last_result = "failed: " + why;
  ++status_.failures;
  status_.watchdog_resets += timed_out ? 1 : 0;
  trigger_.Restart();
  LOG_ERROR("[EPLB] rank {}: rebalance failed, layers keep their current placement: {}",
            comm_.mesh.rank(), why);
}

std::vector<int32_t> EplbManager::Slots() const {
  const Placement present = Current();
  std::vector<int32_t> slots(static_cast<size_t>(shape_.layers) * present.physical, -1);
  for (size_t i = 0; i < layers_.size(); ++i)
    std::ranges::copy(present.Layer(static_cast<int>(i)),
                      slots.begin() + int64_t{layers_[i]} * present.physical);
  return slots;
}

EplbStatus EplbManager::Status() const {
  EplbStatus status = status_;
  if (window_) status.balancedness = window_->MeanBalancedness();
  return status;
}

}  // namespace switchyard
