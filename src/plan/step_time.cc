// The time of a step of ranks with equal work, from the engine's list of operations: one rank and
// its links. engine_step.h simulates all ranks.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "model/decoder.h"
#include "plan/step_cost.h"

namespace switchyard::plan {
namespace {

using schedule::Kind;
using schedule::Operation;
using schedule::Phase;

constexpr size_t kPhases = static_cast<size_t>(Phase::kFinish) + 1;

}  // namespace

// Lists are cached, because they depend on few settings and a search needs them thousands of times.
const std::vector<Operation>& StepCosts::Program(bool two_batches, bool decode) const {
  static thread_local std::map<std::string, std::vector<Operation>> known;
  std::string key(two_batches ? "2" : "1");
  key += decode ? 'd' : 'p';
  key += down_under_combine() ? 'b' : '-';
  key += m_.has_moe() && m_.moe->shared_intermediate > 0 ? 's' : '-';
  for (const LayerConfig& layer : m_.layers) key += layer.shortcut ? 'x' : layer.moe ? 'm' : '.';
  auto [entry, added] = known.try_emplace(std::move(key));
  if (added) {
    schedule::ServeShape shape =
        ServeShapeOf(m_, {.single_batch_overlap = down_under_combine()}, two_batches);
    shape.mode = decode ? schedule::Mode::kDecode : schedule::Mode::kPrefill;
    entry->second = schedule::Plan(shape);
  }
  return entry->second;
}

bool StepCosts::TwoBatches(const StepShape& shape) const {
  return r_.tbo && m_.has_moe() && World(shape) >= static_cast<double>(r_.tbo_min_tokens);
}

StepShape StepCosts::PartOf(const StepShape& shape) const {
  StepShape part = shape;
  part.rows /= 2;
  part.mean_rows /= 2;
  part.decode_rows /= 2;
  part.sequences = std::max(1.0, part.sequences / 2);
  return part;
}

double StepCosts::WithVariation(double share, double variation) {
  return std::max(1.0, std::round(32 * (share + variation))) / 32;
}

double StepCosts::Variation(const StepShape& shape, const ExpertShares& loads, int layer) const {
  return loads.Variation(layer, World(shape) * ExpertsOfToken() / r_.mesh.ep);
}

namespace {

// Layers of equal costs: dense ones, or those with the same share of the most loaded rank.
struct EqualLayers {
  bool moe = false;
  double expert_share = 0;
  std::array<StepCosts::PhaseCost, kPhases> costs;
  std::array<std::pair<double, double>, kPhases> seconds;  // computation, transfer
  std::array<int, kPhases> times{};                        // number of operations
};

}  // namespace

StepTime StepCosts::Of(const StepShape& shape, const ExpertShares* loads) const {
  const bool two = TwoBatches(shape);
  const StepShape part = two ? PartOf(shape) : shape;
  const std::vector<Operation>& program = Program(two, shape.decode);
  // Whether projections are a separate operation.
  const bool split = std::ranges::any_of(program, [](const Operation& operation) {
    return operation.kind == Kind::kForward && operation.phase == Phase::kQkv;
  });
  std::vector<EqualLayers> kinds;
  std::vector<size_t> kind_of;  // [layers]
  for (size_t i = 0; i < m_.layers.size(); ++i) {
    const bool moe = m_.layers[i].moe;
    const auto layer = static_cast<int>(i);
    const double share =
        moe && loads ? WithVariation(loads->Most(layer), Variation(part, *loads, layer)) : 0;
    const auto known = std::ranges::find_if(kinds, [&](const EqualLayers& kind) {
      return kind.moe == moe && kind.expert_share == share;
    });
    kind_of.push_back(known - kinds.begin());
    if (known != kinds.end()) continue;
    EqualLayers& kind = kinds.emplace_back();
    kind.moe = moe;
    kind.expert_share = share;
    StepShape of_kind = part;
    of_kind.expert_share = share;
    for (size_t p = 0; p < kPhases; ++p) {
      const auto phase = static_cast<Phase>(p);
      if (!moe && phase != Phase::kQkv && phase != Phase::kAttention && phase != Phase::kExperts)
        continue;
      kind.costs[p] = Of(of_kind, moe, phase, split);
      kind.seconds[p] = {kind.costs[p].compute.sum(), kind.costs[p].transfer.sum()};
    }
  }
  StepTime time;
  std::array<double, 2> arrival{}, in_parts{};  // in_parts: a combine that follows `down`
  double clock = 0, link = 0;                   // when the rank and its links are free
  for (const Operation& operation : program) {
    if (operation.kind != Kind::kForward) continue;
    EqualLayers& kind = kinds[kind_of[operation.layer]];
    const auto p = static_cast<size_t>(operation.phase);
    auto [compute, transfer] = kind.seconds[p];
    ++kind.times[p];
    double& arrives = arrival[operation.micro_batch];
    if (operation.phase == Phase::kExperts || operation.phase == Phase::kFinish)
      clock = std::max(clock, arrives);
    if (operation.phase == Phase::kCombine && down_under_combine()) {
      in_parts[operation.micro_batch] = std::exchange(transfer, 0.0);
    } else if (operation.phase == Phase::kDown) {
      transfer = std::exchange(in_parts[operation.micro_batch], 0.0);
    }
    const double begin = clock;
    clock += compute;
    if (transfer <= 0) continue;
    if (!t_.exchange_overlaps) {
      clock += transfer;
    } else if (operation.phase == Phase::kDown) {
      // The first part leaves as soon as it is computed, and the last part after all of them.
      link = std::max(std::max(begin + compute / kCombineParts, link) + transfer,
                      clock + transfer / kCombineParts);
      arrives = link;
    } else {
      link = std::max(clock, link) + transfer;
      arrives = link;
    }
  }
  for (const EqualLayers& kind : kinds)
    for (size_t p = 0; p < kPhases; ++p) {
      time.work.Add(kind.costs[p].compute, kind.times[p]);
      time.work.Add(kind.costs[p].transfer, kind.times[p]);
    }
  const Cost ends = Ends(shape);
  time.work.Add(ends);
  time.seconds = clock + ends.sum();
  return time;
}

}  // namespace switchyard::plan
