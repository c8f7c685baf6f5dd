// Synthetic batches of an exchange, and their expected results computed on the CPU.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/testing.h"
#include "moe/cuda/dispatchers/exchange.h"
#include "moe/placement/placement.h"
#include "moe/rows.h"

namespace switchyard::cuda {

// One batch on all ranks; a deterministic function of its Spec.
class TestTraffic {
 public:
  struct Spec {
    ExchangeConfig config;      // configuration of any of the ranks
    DType dtype = DType::kF32;  // type of x
    std::vector<bool> active;   // [ranks]; empty: all ranks are active
    int64_t tokens = -1;        // tokens of each rank; −1: random, up to max_tokens
    uint32_t seed = 1;
  };
  struct Rank {
    std::vector<float> x;        // [tokens, hidden], representable in `dtype`
    std::vector<int32_t> ids;    // [tokens, k]
    std::vector<float> weights;  // [tokens, k]
    // For each source rank, the tokens that have an expert on this rank.
    std::vector<std::vector<int32_t>> arriving;
    std::vector<std::byte> outputs;  // [ranks · max_tokens · k, hidden] of the combined dtype
    std::vector<int32_t> position;   // [ranks · max_tokens, k]

    int64_t tokens(int k) const { return std::ssize(ids) / k; }
  };

  TestTraffic(const Spec& s, const ExpertMap& map)
      : spec(s), ranks(s.config.ranks), map_(&map), random_(s.seed) {
    for (int r = 0; r < s.config.ranks; ++r) Route(&ranks[r]);
    for (int r = 0; r < s.config.ranks; ++r) Arrive(r);
  }

  bool Active(int rank) const { return spec.active.empty() || spec.active[rank]; }
  int32_t LocalIdOn(int rank, int32_t id) const { return map_->LocalIdOn(rank, id); }

  // Expected y [tokens, hidden] of a rank.
  std::vector<float> Sums(int rank) const {
    const ExchangeConfig& c = spec.config;
    const Rank& own = ranks[rank];
    std::vector<float> y(own.ids.size() / c.top_k * c.hidden);
    for (int64_t t = 0; t < own.tokens(c.top_k); ++t) {
      float* sum = y.data() + t * c.hidden;
      if (!c.sum_by_rank) {
        for (int j = 0; j < c.top_k; ++j) AddSlot(rank, t, j, sum);
        continue;
      }
      for (int r = 0; r < c.ranks; ++r) {
        std::vector<float> part(c.hidden), rounded(c.hidden);
        bool any = false;
        for (int j = 0; j < c.top_k; ++j) {
          const int32_t id = own.ids[t * c.top_k + j];
          if (LocalIdOn(r, id) < 0 || !Active(r)) continue;
          any = true;
          AddSlot(rank, t, j, part.data());
        }
        if (!any) continue;
        RoundRow({.dtype = c.combined}, part.data(), c.hidden, rounded.data());
        for (int64_t i = 0; i < c.hidden; ++i) sum[i] += rounded[i];
      }
    }
    return y;
  }

  Spec spec;
  std::vector<Rank> ranks;

 private:
  void Route(Rank* rank) {
    const ExchangeConfig& c = spec.config;
    const int64_t tokens = spec.tokens >= 0 ? spec.tokens : random_.Below(c.max_tokens + 1);
    rank->x = random_.Normal(tokens * c.hidden);
    // Some groups of 128 elements become zeros, some tiny, some large.
    for (int64_t g = 0; g < std::ssize(rank->x) / 128; ++g) {
      const float factor = random_.Pick({1.0f, 1.0f, 1.0f, 0.0f, 1e-30f, 1e-39f, 1e30f});
      for (int64_t i = 0; i < 128; ++i) rank->x[g * 128 + i] *= factor;
    }
    if (spec.dtype == DType::kBF16)
      for (float& value : rank->x) value = ToFloat(ToBF16(value));
    const int hot = static_cast<int>(random_.Below(map_->size()));
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> ids = random_.Shuffled(map_->size());
      if (random_.Below(4) == 0) std::swap(ids[0], *std::ranges::find(ids, hot));
      ids.resize(c.top_k, -1);
      for (int32_t& id : ids)
        if (random_.Below(8) == 0) id = -1;
      if (random_.Below(16) == 0) std::ranges::fill(ids, -1);
      rank->ids.insert(rank->ids.end(), ids.begin(), ids.end());
    }
    rank->weights = random_.Normal(tokens * c.top_k);
  }

  void Arrive(int rank) {
    const ExchangeConfig& c = spec.config;
    Rank& own = ranks[rank];
    own.arriving.resize(c.ranks);
    const int64_t rows = c.ranks * c.max_tokens;
    own.position.assign(rows * c.top_k, -1);
    const std::vector<int32_t> places = random_.Shuffled(static_cast<int32_t>(rows * c.top_k));
    for (int s = 0; s < c.ranks; ++s) {
      if (!Active(rank) || !Active(s)) continue;
      for (int64_t t = 0; t < ranks[s].tokens(c.top_k); ++t) {
        bool here = false;
        const int64_t row = s * c.max_tokens + std::ssize(own.arriving[s]);
        for (int j = 0; j < c.top_k; ++j) {
          if (LocalIdOn(rank, ranks[s].ids[t * c.top_k + j]) < 0) continue;
          here = true;
          own.position[row * c.top_k + j] = places[row * c.top_k + j];
        }
        if (here) own.arriving[s].push_back(static_cast<int32_t>(t));
      }
    }
    const std::vector<float> outputs = random_.Normal(rows * c.top_k * c.hidden);
    own.outputs.resize(outputs.size() * SizeOf(c.combined));
    StoreRow(c.combined, outputs.data(), std::ssize(outputs), own.outputs.data());
  }

  // sum += weight · output of one slot of a rank's token.
  void AddSlot(int rank, int64_t token, int slot, float* sum) const {
    const ExchangeConfig& c = spec.config;
    const int64_t at = token * c.top_k + slot;
    const int32_t id = ranks[rank].ids[at];
    for (int r = 0; r < c.ranks; ++r) {
      if (LocalIdOn(r, id) < 0 || !Active(r)) continue;
      const std::vector<int32_t>& arriving = ranks[r].arriving[rank];
      const int64_t row =
          rank * c.max_tokens +
          (std::ranges::find(arriving, static_cast<int32_t>(token)) - arriving.begin());
      const int64_t output = ranks[r].position[row * c.top_k + slot];
      AddWeightedRow(
          c.combined,
          ranks[r].outputs.data() + output * c.hidden * static_cast<int64_t>(SizeOf(c.combined)),
          ranks[rank].weights[at], c.hidden, sum);
    }
  }

  const ExpertMap* map_;
  kernels::Random random_;
};

}  // namespace switchyard::cuda
