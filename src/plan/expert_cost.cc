// The costs of experts and of the exchanges around them.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "plan/step_cost.h"

namespace switchyard::plan {
namespace {

// The rows that the kernels of packed 4-bit experts compute for `rows` rows of an expert on a GPU
// (TokensOfTile in gemm_few_rows.cuh).
double RowsOfTiles(double rows) {
  for (const double tile : {16.0, 32.0, 64.0})
    if (rows <= tile) return tile;
  return std::ceil(rows / 32) * 32;
}

}  // namespace

UniformRouting StepCosts::UniformOf(const ModelConfig& model, const Ranks& ranks,
                                    const Routing& routing) {
  if (!model.has_moe()) return {};
  const RouterConfig& router = model.moe->router;
  return {ExpertsOfToken(router), static_cast<double>(router.num_experts + ranks.redundant),
          ranks.mesh.ep, routing.correlation};
}

// All groups have the same share of decode rows, and prompts of equal lengths. A group without rows
// assumes that each group has one prompt.
RoutedTokens StepCosts::TokensOf(const StepShape& shape) const {
  const double world = World(shape);
  if (shape.decode || world <= 0) return {.singles = world};
  const double decoding = shape.rows > 0 ? shape.decode_rows / shape.rows : 0;
  const double prompts = world * (1 - decoding);
  const double own = shape.rows > 0 ? shape.rows - shape.decode_rows : world / r_.mesh.dp;
  const double of_sequence = std::max(1.0, own / std::max(1.0, shape.sequences));
  return {
      .singles = world * decoding, .sequences = prompts / of_sequence, .of_sequence = of_sequence};
}

// The expected number of ranks of an EP group that a token's experts are on, if routing is even. A
// router that limits the groups of experts also limits the ranks.
double StepCosts::DistinctRanks() const {
  const RouterConfig& router = m_.moe->router;
  double ranks = r_.mesh.ep;
  if (router.num_groups > 1 && router.topk_groups > 0)
    ranks = std::max(1.0, ranks * router.topk_groups / router.num_groups);
  return ranks * (1 - std::pow(1 - 1 / ranks, ExpertsOfToken()));
}

double StepCosts::ExpertsOfToken(const RouterConfig& router) {
  return static_cast<double>(router.top_k) * router.num_experts / router.num_logits();
}

// Adds the cost of gate, up and activation to *up, and of the down projection to *down.
void StepCosts::Experts(const StepShape& shape, Cost* up, Cost* down) const {
  const RouterConfig& router = m_.moe->router;
  const double world = World(shape), physical = router.num_experts + r_.redundant;
  const double local = physical / r_.mesh.ep, k = ExpertsOfToken();
  // All ranks wait for the one with the most rows, and for the one that reads the most experts.
  const RoutedTokens tokens = TokensOf(shape);
  const ExpertLoad load = uniform_.MostLoaded(tokens);
  double rows = load.rows, used = load.experts;
  if (r_.mesh.ep > 1) {
    const ExpertLoad mean = uniform_.Mean(tokens);
    const double most = world * std::min(k, local);
    if (shape.expert_share > 0) {  // the step's own load
      rows = std::min(most, mean.rows * shape.expert_share);
      used = std::min({mean.experts, local, rows});
    } else {
      rows = std::max(rows, std::min(most, rows + (routing_.imbalance - 1) * mean.rows));
    }
  }
  if (used <= 0) return;
  const double width = static_cast<double>(m_.moe->intermediate) / mesh_.moe_tp();
  const auto hidden = static_cast<double>(m_.hidden);
  const std::string& name = f_.experts.name;
  const bool packed = t_.cuda && f_.experts.bytes < 1;
  // Experts have different numbers of rows. Those with few rows take the time to read their
  // weights.
  std::array<double, UniformRouting::kParts> parts = uniform_.RowsOfExperts(tokens);
  const double mean_part = std::accumulate(parts.begin(), parts.end(), 0.0) / parts.size();
  for (double& part : parts) part = std::max(1.0, part * rows / used / mean_part);
  const double weights = 3 * width * hidden;
  const bool small = t_.small_experts.contains(name);
  // The deviation of rows over all local experts, and that of independent tokens.
  double squares = 0;
  for (const double part : parts) squares += part * part / static_cast<double>(parts.size());
  const double mean = rows / local;
  const double deviation = std::sqrt(std::max(0.0, squares * used / local - mean * mean));
  const double independent = std::sqrt(mean * std::max(0.0, 1 - k / physical));
  const auto uneven = t_.uneven.find(name);
  const double tails =
      uneven == t_.uneven.end()
          ? 0
          : uneven->second *
                std::max(0.0, std::min(deviation, CostTable::kMostUneven) - independent);
  const auto product = [&](double n, double columns, Cost* cost) {
    const double memory = n * columns * f_.experts.bytes / t_.WeightRate(name);
    double read = 0, computed = 0;
    for (const double part : parts) {
      const double tiles = packed ? RowsOfTiles(part) : part;
      const double flops = 2 * tiles * n * columns / t_.ExpertRate(name, tiles, weights);
      // Rates of small experts with few rows contain the time to read the weights.
      const bool reads = memory > flops || (small && 2 * memory > flops);
      (reads ? read : computed) += std::max(memory, flops);
    }
    const double each = used / static_cast<double>(parts.size());
    cost->Add(Part::kExperts, Limit::kStart, t_.grouped_seconds);
    cost->Add(Part::kExperts, Limit::kBandwidth, each * read);
    cost->Add(Part::kExperts, Limit::kFlops, each * computed + tails * columns);
  };
  // The copy of rows to experts and the activation write the format of the products.
  const double element = f_.experts.fp8_rows ? 1 : 2;
  if (t_.cuda) Small(Part::kExperts, rows * hidden * element + world * hidden * kFloat, up);
  product(2 * width, hidden, up);
  if (t_.cuda) Small(Part::kExperts, rows * width * (4 + element), up);
  product(hidden, width, down);
}

// Each token that the rank routes sends `rows_per_token` rows, evenly over the ranks of the EP
// group. A rank whose experts have more rows receives more, and returns as many: the longer of the
// two directions counts.
void StepCosts::Exchange(Part part, double rows_per_token, double row_bytes, const StepShape& shape,
                         PhaseCost* cost) const {
  const double ep = r_.mesh.ep;
  // Ranks of this host in an EP group, which is strided over the world.
  const double near =
      std::max(1.0, std::min(ep, static_cast<double>(r_.ranks_of_host) / mesh_.moe_tp()));
  // In dispatch, a rank gets a token once, however many of its experts the token has.
  const double most = part == Part::kDispatch ? ep / rows_per_token : ep;
  const double experts = World(shape) / ep * std::min(shape.expert_share, most);
  const double bytes = std::max(Lane(shape), experts) * rows_per_token * row_bytes;
  Sent& sent = cost->sent;
  sent = {
      .start = t_.host.seconds, .near = bytes * (near - 1) / ep, .far = bytes * (ep - near) / ep};
  double seconds = sent.near / t_.host.rate;
  if (near < ep) {
    seconds = std::max(seconds, sent.far / std::max(nic_rate() / r_.ranks_of_host, 1.0));
    sent.start = std::max(sent.start, t_.network.seconds);
  }
  cost->transfer.Add(part, Limit::kStart, sent.start);
  cost->transfer.Add(part, Limit::kNetwork, seconds);
}

}  // namespace switchyard::plan
