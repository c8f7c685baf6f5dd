#include "eplb/replica_choice.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"
#include "eplb/exact_balance.h"

namespace switchyard {
namespace {

// Number of sweeps. With it, a batch on 64 ranks takes 8 us and is within 1 % of the exact optimum
// (bench/eplb_bench.cc).
constexpr int kSweeps = 16;

// Uniform in [0, n), with a bias below 2^-32.
int32_t Uniform(uint64_t random, int32_t n) {
  return static_cast<int32_t>(((random >> 32) * static_cast<uint64_t>(n)) >> 32);
}

uint64_t OfToken(const ChoiceKey& key) {
  return SplitMix64(SplitMix64(key.seed + static_cast<uint64_t>(key.token)) +
                    static_cast<uint64_t>(key.layer));
}

}  // namespace

EpDispatchAlgorithm ParseEpDispatchAlgorithm(const std::string& name) {
  if (name == "static") return EpDispatchAlgorithm::kStatic;
  if (name == "dynamic") return EpDispatchAlgorithm::kDynamic;
  if (name == "fake") return EpDispatchAlgorithm::kFake;
  if (name == "balanced") return EpDispatchAlgorithm::kBalanced;
  if (name == "lp") return EpDispatchAlgorithm::kLp;
  throw Invalid("--ep-dispatch-algorithm {}: want static, dynamic, fake, balanced or lp", name);
}

std::vector<int32_t> StaticReplicas(const ExpertLocation& location, int layer,
                                    const RankTopology& topology, int rank) {
  const int physical = location.num_physical();
  std::vector<int> rank_of(physical);
  for (const RankSlots& slots : LivingSlots(topology, physical))
    std::fill(rank_of.begin() + slots.begin, rank_of.begin() + slots.end, slots.rank);
  std::vector<int32_t> chosen(location.num_logical());
  for (int32_t expert = 0; expert < location.num_logical(); ++expert)
    chosen[expert] = NearReplica(location.Replicas(layer, expert), expert, rank, rank_of,
                                 topology.ranks / topology.nodes);
  return chosen;
}

int32_t DynamicReplica(std::span<const int32_t> replicas, const ChoiceKey& key) {
  const uint64_t random = SplitMix64(OfToken(key) + static_cast<uint64_t>(key.slot));
  return replicas[Uniform(random, static_cast<int32_t>(replicas.size()))];
}

int32_t FakeExpert(int32_t physical, const ChoiceKey& key) {
  const uint64_t random = OfToken(key);
  const int32_t first = Uniform(random, physical);
  // Top-k slot j gets expert slot first + j · stride. The stride is coprime to `physical`, so no
  // expert slot repeats before all of them were used.
  int32_t stride = 1 + Uniform(SplitMix64(random), std::max(physical - 1, 1));
  while (std::gcd(stride, physical) != 1) ++stride;
  return static_cast<int32_t>((first + int64_t{key.slot} * stride) % physical);
}

void BatchDivider::Reset(EpDispatchAlgorithm algorithm, const ExpertLocation& location, int layer,
                         const RankTopology& topology, int offset) {
  algorithm_ = algorithm;
  offset_ = offset;
  location_ = &location;
  layer_ = layer;
  const std::vector<RankSlots> living = LivingSlots(topology, location.num_physical());
  bins_ = static_cast<int>(living.size());
  bin_of_.assign(location.num_physical(), -1);
  for (int bin = 0; bin < bins_; ++bin)
    std::fill(bin_of_.begin() + living[bin].begin, bin_of_.begin() + living[bin].end, bin);
  if (algorithm == EpDispatchAlgorithm::kBalanced)
    filling_.Reset(bins_, location.num_logical(), bin_of_, location.placement().Layer(layer),
                   offset);
  if (algorithm != EpDispatchAlgorithm::kStatic) return;
  static_.resize(static_cast<size_t>(location.num_logical()) * bins_);
  for (int bin = 0; bin < bins_; ++bin) {
    const std::vector<int32_t> chosen = StaticReplicas(location, layer, topology, living[bin].rank);
    for (size_t e = 0; e < chosen.size(); ++e) static_[e * bins_ + bin] = chosen[e];
  }
}

void BatchDivider::Divide(std::span<const int32_t> counts, std::span<int32_t> shares) {
  CHECK(location_ != nullptr && std::ssize(counts) == location_->num_logical() &&
        std::ssize(shares) == location_->num_physical());
  switch (algorithm_) {
    case EpDispatchAlgorithm::kStatic:
      return DivideStatic(counts, shares);
    case EpDispatchAlgorithm::kDynamic:
      return DivideEvenly(counts, shares);
    case EpDispatchAlgorithm::kFake:
      return DivideFake(counts, shares);
    case EpDispatchAlgorithm::kBalanced:
      load_.assign(counts.begin(), counts.end());
      filling_.Fill(load_, kSweeps);
      return filling_.Shares(shares);
    case EpDispatchAlgorithm::kLp:
      ExactBalance(bins_, bin_of_, location_->placement().Layer(layer_), counts, shares, offset_);
      return;
  }
}

void BatchDivider::DivideStatic(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  std::ranges::fill(shares, 0);
  for (size_t e = 0; e < counts.size(); ++e)
    for (int64_t bin = 0; bin < bins_; ++bin)
      shares[static_[e * bins_ + bin]] +=
          static_cast<int32_t>(counts[e] * (bin + 1) / bins_ - counts[e] * bin / bins_);
}

void BatchDivider::DivideEvenly(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  std::ranges::fill(shares, 0);
  for (size_t e = 0; e < counts.size(); ++e) {
    const auto replicas = location_->Replicas(layer_, static_cast<int32_t>(e));
    const auto n = static_cast<int64_t>(replicas.size());
    for (int64_t i = 0; i < n; ++i)
      shares[replicas[i]] = static_cast<int32_t>(counts[e] * (i + 1) / n - counts[e] * i / n);
  }
}

void BatchDivider::DivideFake(std::span<const int32_t> counts, std::span<int32_t> shares) const {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t n = std::ranges::count_if(bin_of_, [](int32_t bin) { return bin >= 0; });
  int64_t i = 0;
  for (size_t p = 0; p < shares.size(); ++p) {
    shares[p] = 0;
    if (bin_of_[p] < 0) continue;
    shares[p] = static_cast<int32_t>(total * (i + 1) / n - total * i / n);
    ++i;
  }
}

int32_t ReplicaOfToken(std::span<const int32_t> replicas, std::span<const int32_t> shares,
                       int32_t ordinal) {
  for (const int32_t place : replicas) {
    if (ordinal < shares[place]) return place;
    ordinal -= shares[place];
  }
  CHECK(false);
  return -1;
}

}  // namespace switchyard
