#include "plan/expert_loads.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "eplb/array_file.h"

namespace switchyard::plan {
namespace {

// Changes of the popularity in --expert-drift seconds.
constexpr int kChangesOfDrift = 32;

// 1 − exp(−τ w) for each weight, with the τ for which the sum is `sum`.
std::vector<double> Inclusion(std::span<const double> weights, double sum) {
  const auto of = [&](double tau) {
    double all = 0;
    for (const double w : weights) all -= std::expm1(-tau * w);
    return all;
  };
  double low = 0, high = 1;
  while (of(high) < sum && high < 1e300) high *= 2;
  for (int i = 0; i < 200; ++i) (of((low + high) / 2) < sum ? low : high) = (low + high) / 2;
  std::vector<double> all;
  for (const double w : weights) all.push_back(-std::expm1(-high * w));
  return all;
}

double ExponentOf(const std::string& source) {
  const char* const end = source.data() + source.size();
  double exponent = 0;
  const auto [last, error] = std::from_chars(source.data() + source.find(':') + 1, end, exponent);
  if (error != std::errc() || last != end || !(exponent >= 0 && exponent <= 10))
    throw Invalid("--expert-loads {}: want an exponent of 0 to 10, like zipf:1", source);
  return exponent;
}

// The recorded loads of the model's MoE layers.
LoadHistory OfMoeLayers(const LoadHistory& all, const ModelConfig& model,
                        const std::string& source) {
  const auto moe = static_cast<int>(std::ranges::count(model.layers, true, &LayerConfig::moe));
  const int experts = model.moe->router.num_experts;
  if (all.experts != experts)
    throw Invalid("--expert-loads {}: recorded {} experts, but the model has {}", source,
                  all.experts, experts);
  const bool whole = all.layers == std::ssize(model.layers);
  if (!whole && all.layers != moe && all.layers != 1)
    throw Invalid(
        "--expert-loads {}: recorded {} layers; want the {} layers of the model, its {} MoE "
        "layers, or one for all",
        source, all.layers, model.layers.size(), moe);
  LoadHistory some{.steps = all.steps, .layers = moe, .experts = experts, .counts = {}};
  for (int step = 0; step < all.steps; ++step) {
    int at = 0;
    for (size_t layer = 0; layer < model.layers.size(); ++layer) {
      if (!model.layers[layer].moe) continue;
      const int from = all.layers == 1 ? 0 : whole ? static_cast<int>(layer) : at;
      const auto counts = all.At(step, from);
      some.counts.insert(some.counts.end(), counts.begin(), counts.end());
      ++at;
    }
  }
  return some;
}

}  // namespace

ExpertLoads::ExpertLoads(const ExpertLoadOptions& options, const ModelConfig& model)
    : drift_seconds_(options.drift_seconds), seed_(options.seed) {
  if (!model.has_moe())
    throw Invalid("--expert-loads {}: the model has no experts", options.source);
  constexpr double kLeastDrift = 1e-3;  // every change takes a computation
  if (options.drift_seconds > 0 && options.drift_seconds < kLeastDrift)
    throw Invalid("--expert-drift {}: want 0, or at least {} seconds", options.drift_seconds,
                  kLeastDrift);
  const RouterConfig& router = model.moe->router;
  layers_ = static_cast<int>(std::ranges::count(model.layers, true, &LayerConfig::moe));
  experts_ = router.num_experts;
  top_k_ = static_cast<double>(router.top_k) * router.num_experts / router.num_logits();
  const bool zipf = options.source.starts_with("zipf:");
  if (!zipf && options.source != "uniform") {
    if (options.drift_seconds > 0)
      throw Invalid("--expert-drift {} is a flag of zipf:EXPONENT; recorded loads have their own",
                    options.drift_seconds);
    if (!std::filesystem::exists(options.source))
      throw NotFound("--expert-loads {}: want uniform, zipf:EXPONENT, or a file that exists",
                     options.source);
    recorded_ = OfMoeLayers(ReadLoads(ArrayFile(options.source)), model, options.source);
    return;
  }
  const double exponent = zipf ? ExponentOf(options.source) : 0;
  std::vector<double> weights;
  weights.reserve(experts_);
  for (int i = 0; i < experts_; ++i) weights.push_back(std::pow(i + 1.0, -exponent));
  of_rank_ = Inclusion(weights, top_k_);
}

ExpertPopularity::ExpertPopularity(std::shared_ptr<const ExpertLoads> loads)
    : loads_(std::move(loads)), random_(loads_->seed()) {
  if (loads_->recorded().steps > 0) return;
  const auto experts = static_cast<size_t>(loads_->experts());
  rank_of_.resize(loads_->layers() * experts);
  for (int layer = 0; layer < loads_->layers(); ++layer) {
    const auto order = std::span(rank_of_).subspan(layer * experts, experts);
    std::iota(order.begin(), order.end(), 0);
    // Shuffled here, because std::shuffle differs between implementations.
    for (size_t i = experts; i > 1; --i) std::swap(order[i - 1], order[Below(i)]);
  }
  if (loads_->drift_seconds() > 0) next_change_ = loads_->drift_seconds() / kChangesOfDrift;
}

// An exchange changes two experts. The last one is left to chance, so that the mean is exact.
void ExpertPopularity::Exchange() {
  const auto experts = static_cast<uint64_t>(loads_->experts());
  constexpr uint64_t kOne = 2 * kChangesOfDrift;
  for (int layer = 0; layer < loads_->layers(); ++layer) {
    const auto order = std::span(rank_of_).subspan(layer * experts, experts);
    const uint64_t pairs = experts / kOne + (Below(kOne) < experts % kOne ? 1 : 0);
    for (uint64_t i = 0; i < pairs; ++i) std::swap(order[Below(experts)], order[Below(experts)]);
  }
}

bool ExpertPopularity::Advance(double seconds, int64_t step) {
  const int64_t before = version_;
  if (const int steps = loads_->recorded().steps; steps > 0) {
    version_ = step % steps;
    return version_ != before;
  }
  while (next_change_ <= seconds) {
    Exchange();
    ++version_;
    // Not by a sum, whose rounding would depend on the number of changes.
    next_change_ = static_cast<double>(version_ + 1) * loads_->drift_seconds() / kChangesOfDrift;
  }
  return version_ != before;
}

int64_t ExpertPopularity::equal_steps() const {
  return loads_->recorded().steps > 1 ? 1 : std::numeric_limits<int64_t>::max();
}

void ExpertPopularity::Get(int layer, std::span<double> to) const {
  const LoadHistory& recorded = loads_->recorded();
  const auto experts = static_cast<size_t>(loads_->experts());
  if (recorded.steps == 0) {
    for (size_t e = 0; e < experts; ++e) to[e] = loads_->of_rank()[rank_of_[layer * experts + e]];
    return;
  }
  const auto counts = recorded.At(static_cast<int>(version_), layer);
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (size_t e = 0; e < experts; ++e)
    to[e] = loads_->top_k() * (sum > 0 ? counts[e] / sum : 1.0 / static_cast<double>(experts));
}

}  // namespace switchyard::plan
