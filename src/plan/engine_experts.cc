#include "plan/engine_experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "eplb/migration.h"
#include "eplb/plan_job.h"
#include "eplb/transfers.h"
#include "moe/placement/active_placement.h"

namespace switchyard::plan {
namespace {

// Bytes of experts that a rank loads per pass.
constexpr auto kBytesOfPass = static_cast<double>(MigrationOptions{}.bytes_per_step);

std::vector<int> MoeLayers(const ModelConfig& model) {
  std::vector<int> all;
  for (size_t i = 0; i < model.layers.size(); ++i)
    if (model.layers[i].moe) all.push_back(static_cast<int>(i));
  return all;
}

RankTopology TopologyOf(const Question& q, const Ranks& ranks) {
  const int ep = ranks.mesh.ep;
  const int hosts = (ranks.mesh.tp + ranks.ranks_of_host - 1) / ranks.ranks_of_host;
  return {.ranks = ep,
          .nodes = ep % hosts == 0 ? hosts : 1,
          .groups = std::max(1, q.model.moe->router.num_groups),
          .active = {}};
}

}  // namespace

double ExpertBytesOf(const Question& q, const Evaluation& layout) {
  const MatrixFormat format = FormatsOf(q.model, q.cluster.cuda, layout.plan.packs_experts).experts;
  const double width = static_cast<double>(q.model.moe->intermediate) * layout.layout.mesh.ep /
                       layout.layout.mesh.tp;
  return 3.0 * static_cast<double>(q.model.hidden) * width * format.bytes;
}

EngineExperts::EngineExperts(std::shared_ptr<const ExpertLoads> loads, const Question& q,
                             const Evaluation& layout, const LayoutCosts& costs)
    : loads_(std::move(loads)),
      all_layers_(q.model.layers.size()),
      moe_layers_(MoeLayers(q.model)),
      whole_(TopologyOf(q, costs.ranks())),
      physical_(loads_->experts() + layout.layout.redundant),
      eplb_(q.config.eplb),
      dispatch_(ParseEpDispatchAlgorithm(eplb_.dispatch)),
      expert_bytes_(ExpertBytesOf(q, layout)),
      popularity_(loads_),
      kept_(Placement::Trivial(loads_->layers(), physical_, loads_->experts())) {
  const StepCosts& steps = costs.steps(false);
  near_rate_ = std::max(1.0, steps.table().host.rate);
  far_rate_ = std::max(1.0, steps.nic_rate() / steps.ranks().ranks_of_host);
  agree_ = whole_.nodes > 1 ? steps.table().network.seconds : steps.table().host.seconds;
  copy_ = 2 * expert_bytes_ / steps.table().bandwidth;
  figures_.imbalance.assign(moe_layers_.size(), 0);
  if (eplb_.enable)
    alone_ = RankComm::Create(SharedArena::Create(1, RankComm::BytesPerRank({})), MeshShape{},
                              /*rank=*/0);
  Restart();
}

void EngineExperts::KeepPlacement() {
  if (placement_.layers > 0 && topology_.ranks == whole_.ranks) kept_ = placement_;
}

void EngineExperts::Restart() {
  KeepPlacement();
  Use(kept_, whole_);
  BeginEplb(eplb_.enable);
}

void EngineExperts::ServeWith(std::span<const int> active) {
  KeepPlacement();
  std::vector<ExpertPlacement> whole;
  whole.reserve(kept_.layers);
  for (int i = 0; i < kept_.layers; ++i) whole.push_back(kept_.ToExpertPlacement(i));
  const std::vector<ExpertPlacement> placements = PlacementsOfActive(whole, whole_.ranks, active);
  Placement placement(loads_->layers(), placements[0].num_physical(), loads_->experts());
  for (int i = 0; i < placement.layers; ++i)
    std::ranges::copy(placements[i].physical_to_logical(), placement.Layer(i).begin());
  Use(std::move(placement), {.ranks = static_cast<int>(active.size()),
                             .nodes = 1,
                             .groups = whole_.groups,
                             .active = {}});
  BeginEplb(eplb_.enable && CanPlan());
}

void EngineExperts::BeginEplb(bool enable) {
  chunks_.clear();
  added_ = 0;
  moved_ = false;
  uncounted_ = passes_ = 0;
  window_.reset();
  trigger_.reset();
  if (!enable) return;
  window_.emplace(loads_->layers(), loads_->experts(), topology_.ranks,
                  ExpertMap(placement_.physical, topology_.ranks, /*shared_dispatched=*/false),
                  eplb_.num_iterations, *alone_->tp);
  trigger_.emplace(eplb_.num_iterations);
}

EplbAlgorithm EngineExperts::Planner() const {
  return ParseEplbAlgorithm(PlannerFor(eplb_, placement_.physical, topology_.ranks));
}

bool EngineExperts::CanPlan() const {
  if (topology_.ranks < 2) return false;
  const LoadHistory even{.steps = 1,
                         .layers = 1,
                         .experts = loads_->experts(),
                         .counts = std::vector<int32_t>(static_cast<size_t>(loads_->experts()), 1)};
  try {
    PlanPlacement(Planner(), {.history = &even,
                              .topology = topology_,
                              .physical = placement_.physical,
                              .previous = nullptr,
                              .yard = {}});
    return true;
  } catch (const Error&) {
    return false;
  }
}

void EngineExperts::Use(Placement placement, const RankTopology& topology) {
  placement_ = std::move(placement);
  topology_ = topology;
  dividers_.resize(static_cast<size_t>(placement_.layers));
  std::vector<int> layers(static_cast<size_t>(placement_.layers));
  std::iota(layers.begin(), layers.end(), 0);
  ResetDividers(layers);
}

void EngineExperts::ResetDividers(std::span<const int> layers) {
  location_ = ExpertLocation(placement_);
  for (const int layer : layers) dividers_[layer].Reset(dispatch_, location_, layer, topology_);
  ++placements_;
  states_.clear();
  state_ = nullptr;
}

EngineExperts::State EngineExperts::Compute() {
  State state;
  const auto experts = static_cast<size_t>(placement_.logical);
  const auto slots = static_cast<size_t>(placement_.physical);
  const std::vector<RankSlots> of_rank = LivingSlots(topology_, placement_.physical);
  const size_t ranks = of_rank.size();
  ExpertShares& s = state.shares;
  s.ranks = static_cast<int>(ranks);
  s.shares.assign(all_layers_ * ranks, 1.0F);
  // Distinct over all placements: recordings have fewer than 2^31 steps.
  s.version = (placements_ << 31) + popularity_.version();
  state.of_experts.resize(moe_layers_.size() * experts);
  state.of_slots.resize(moe_layers_.size() * slots);
  std::vector<double> popularity(experts);
  double balanced = 0;
  for (size_t layer = 0; layer < moe_layers_.size(); ++layer) {
    popularity_.Get(static_cast<int>(layer), popularity);
    const auto counts = std::span(state.of_experts).subspan(layer * experts, experts);
    for (size_t e = 0; e < experts; ++e)
      counts[e] = static_cast<int32_t>(std::lround(popularity[e] * kTokens));
    const auto rows = std::span(state.of_slots).subspan(layer * slots, slots);
    dividers_[layer].Divide(counts, rows);
    const double all = std::accumulate(rows.begin(), rows.end(), 0.0);
    const double mean = std::max(1.0, all) / static_cast<double>(ranks);
    double most = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const double own =
          std::accumulate(rows.begin() + of_rank[r].begin, rows.begin() + of_rank[r].end, 0.0);
      s.shares[moe_layers_[layer] * ranks + r] = static_cast<float>(own / mean);
      most = std::max(most, own / mean);
    }
    balanced += most > 0 ? 1 / most : 1;
  }
  state.balancedness = balanced / static_cast<double>(moe_layers_.size());
  return state;
}

const ExpertShares& EngineExperts::Shares(double now) {
  const int64_t before = popularity_.version();
  const bool changed = popularity_.Advance(now, step_);
  if (state_ && !changed) return state_->shares;
  if (state_) Count();  // tokens of the steps so far
  if (loads_->recorded().steps == 0 && changed) states_.erase(before);
  if (states_.size() >= kKeptStates) states_.clear();
  auto known = states_.find(popularity_.version());
  if (known == states_.end()) known = states_.emplace(popularity_.version(), Compute()).first;
  state_ = &known->second;
  if (figures_.changes.size() < ExpertFigures::kKept)
    figures_.changes.emplace_back(now, static_cast<float>(state_->balancedness));
  if (moved_) figures_.rebalances.back().after = state_->balancedness;
  moved_ = false;
  return state_->shares;
}

int64_t EngineExperts::equal_steps() const {
  int64_t steps = popularity_.equal_steps();
  if (!window_) return steps;
  steps = std::min(steps, window_->passes_per_step() - passes_);
  if (chunks_.empty()) return std::max<int64_t>(1, std::min(steps, trigger_->passes_left()));
  // The first step of a chunk may include the switch of the one before.
  return added_ > chunks_.front().piece_seconds + agree_
             ? 1
             : std::max<int64_t>(1, std::min(steps, chunks_.front().passes));
}

// Adds the counts of `uncounted_` tokens to the window.
void EngineExperts::Count() {
  if (!window_ || uncounted_ == 0) return;
  const auto scaled = [&](std::span<const int32_t> rows) {
    std::vector<int32_t> counts;
    for (const int32_t row : rows)
      counts.push_back(static_cast<int32_t>(
          std::lround(static_cast<double>(row) * static_cast<double>(uncounted_) / kTokens)));
    return counts;
  };
  const auto experts = static_cast<size_t>(placement_.logical);
  const auto slots = static_cast<size_t>(placement_.physical);
  for (size_t i = 0; i < moe_layers_.size(); ++i)
    window_->AddCounts(0, static_cast<int>(i),
                       scaled(std::span(state_->of_experts).subspan(i * experts, experts)),
                       scaled(std::span(state_->of_slots).subspan(i * slots, slots)));
  uncounted_ = 0;
}

void EngineExperts::EndSteps(int64_t steps, int64_t tokens, double seconds, double now) {
  const double all = static_cast<double>(steps) * seconds;
  for (size_t i = 0; i < moe_layers_.size(); ++i)
    figures_.imbalance[i] += all * state_->shares.Most(moe_layers_[i]);
  figures_.balancedness += all * state_->balancedness;
  figures_.seconds += all;
  step_ += steps;
  if (!window_) return;
  added_ = 0;
  uncounted_ += steps * tokens;
  passes_ += steps;
  if (passes_ >= window_->passes_per_step()) {
    Count();
    passes_ = 0;
  }
  bool whole = false;
  for (int64_t i = 0; i < steps; ++i) whole = window_->EndPass(0);
  if (!chunks_.empty()) {
    figures_.rebalances.back().added_seconds +=
        static_cast<double>(steps) * (chunks_.front().piece_seconds + agree_);
    trigger_->EndPasses(*window_, whole, /*busy=*/true, steps);
    Migrate(steps, now);
  } else if (const auto due = trigger_->EndPasses(*window_, whole, /*busy=*/false, steps)) {
    Plan(*due, now);
  }
  if (!chunks_.empty()) added_ += chunks_.front().piece_seconds + agree_;
}

void EngineExperts::Plan(const RebalanceTrigger::Due& due, double now) {
  trigger_->Restart();
  const std::optional<double> balancedness = window_->MeanBalancedness();
  if (!balancedness || *balancedness > eplb_.min_utilization) return window_->OnPlanned();
  const LoadHistory history = window_->History(due.steps);
  window_->OnPlanned(due.steps);
  next_ = PlanPlacement(Planner(), {.history = &history,
                                    .topology = topology_,
                                    .physical = placement_.physical,
                                    .previous = &placement_,
                                    .yard = {}});
  ResetLayersNotWorthMoving(history, window_->passes_per_step() * history.steps, dispatch_,
                            topology_, placement_, &next_);
  std::vector<int> layers;
  for (int i = 0; i < next_.layers; ++i)
    if (!std::ranges::equal(next_.Layer(i), placement_.Layer(i))) layers.push_back(i);
  if (layers.empty()) return;
  const Moves moves = CountMoves(placement_, next_, topology_);
  figures_.rebalances.push_back({.start = now,
                                 .trigger = due.name,
                                 .layers = static_cast<int>(layers.size()),
                                 .before = state_->balancedness,
                                 .same_node = moves.same_node,
                                 .other_node = moves.other_node,
                                 .bytes = static_cast<double>(moves.total()) * expert_bytes_});
  const size_t of_chunk =
      eplb_.layers_per_chunk < 0 ? layers.size() : static_cast<size_t>(eplb_.layers_per_chunk);
  for (size_t begin = 0; begin < layers.size(); begin += of_chunk)
    chunks_.push_back(
        ChunkOf(std::span(layers).subspan(begin, std::min(of_chunk, layers.size() - begin))));
}

EngineExperts::Chunk EngineExperts::ChunkOf(std::span<const int> layers) const {
  Chunk chunk{.layers = {layers.begin(), layers.end()}};
  // Experts that each rank receives from its own host, and from other ones.
  std::vector<std::array<double, 2>> received(static_cast<size_t>(topology_.ranks));
  for (const int layer : layers) {
    const LayerTransfers transfers =
        PlanTransfers(placement_.Layer(layer), next_.Layer(layer), topology_);
    for (const std::vector<Transfer>& batch : transfers.batches)
      for (const Transfer& t : batch)
        ++received[t.to_rank][topology_.NodeOf(t.from_rank) != topology_.NodeOf(t.to_rank)];
  }
  for (const auto& [near, far] : received) {
    const double bytes = expert_bytes_ * (near + far);
    if (bytes == 0) continue;
    const auto passes = static_cast<int64_t>(std::ceil(bytes / kBytesOfPass));
    chunk.passes = std::max(chunk.passes, passes);
    chunk.piece_seconds =
        std::max(chunk.piece_seconds, expert_bytes_ * (near / near_rate_ + far / far_rate_) /
                                          static_cast<double>(passes));
    chunk.switch_seconds = std::max(chunk.switch_seconds, copy_ * (near + far));
  }
  return chunk;
}

void EngineExperts::Migrate(int64_t steps, double now) {
  Chunk& chunk = chunks_.front();
  chunk.passes -= steps;
  if (chunk.passes > 0) return;
  Count();
  for (const int layer : chunk.layers)
    std::ranges::copy(next_.Layer(layer), placement_.Layer(layer).begin());
  ResetDividers(chunk.layers);
  window_->OnMoved();
  added_ = chunk.switch_seconds;
  Rebalance& rebalance = figures_.rebalances.back();
  rebalance.added_seconds += chunk.switch_seconds;
  chunks_.erase(chunks_.begin());
  if (!chunks_.empty()) return;
  rebalance.end = now;
  moved_ = true;
  trigger_->Restart();
}

ExpertFigures EngineExperts::figures() const {
  ExpertFigures figures = figures_;
  const double seconds = std::max(figures.seconds, 1e-12);
  for (double& layer : figures.imbalance) layer /= seconds;
  figures.balancedness /= seconds;
  return figures;
}

}  // namespace switchyard::plan
