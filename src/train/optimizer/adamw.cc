#include "train/optimizer/adamw.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/range.h"

namespace switchyard::train {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of one task: about 200 KB in five arrays

// Factors that are constant within one step.
struct Factors {
  float keep;   // 1 - rate · decay
  float scale;  // factor of the gradients
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step;     // rate / (1 - beta1^t)
  float unbias2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
};

// A plain loop over arrays that do not alias, vectorized by the compiler (see this file's options
// in CMakeLists.txt).
void Update(const Factors& f, int64_t n, float* __restrict value, float* __restrict gradient,
            float* __restrict first, float* __restrict second) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * f.scale;
    gradient[i] = 0;
    first[i] = f.beta1 * first[i] + f.one_minus_beta1 * g;
    second[i] = f.beta2 * second[i] + f.one_minus_beta2 * (g * g);
    const float size = std::sqrt(second[i]) * f.unbias2 + f.epsilon;
    value[i] = value[i] * f.keep - f.step * (first[i] / size);
  }
}

}  // namespace

AdamW::AdamW(std::vector<Parameter<float>*> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), moments_(parameters_.size()), options_(options) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t size = parameters_[i]->trained_count();
    CHECK(size == 0 || size == std::ssize(parameters_[i]->value));
    const auto shard = static_cast<size_t>(parameters_[i]->MyShard().size());
    moments_[i].first.assign(shard, 0);
    moments_[i].second.assign(shard, 0);
  }
}

int64_t AdamW::moment_bytes() const {
  size_t floats = 0;
  for (const Moments& m : moments_) floats += m.first.size() + m.second.size();
  return static_cast<int64_t>(floats * sizeof(float));
}

void AdamW::Step(double learning_rate, double gradient_scale, ThreadPool& pool) {
  ++steps_;
  const auto t = static_cast<double>(steps_);
  Factors factors{
      .keep = 1,
      .scale = static_cast<float>(gradient_scale),
      .beta1 = static_cast<float>(options_.beta1),
      .one_minus_beta1 = static_cast<float>(1 - options_.beta1),
      .beta2 = static_cast<float>(options_.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options_.beta2),
      .step = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, t))),
      .unbias2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, t))),
      .epsilon = static_cast<float>(options_.epsilon),
  };
  const auto keep = static_cast<float>(1 - learning_rate * options_.weight_decay);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter<float>& p = *parameters_[i];
    factors.keep = p.decay ? keep : 1;
    const Factors& f = factors;
    const Range shard = p.MyShard();
    float* const value = p.value.data() + shard.begin;
    float* const gradient = p.gradient.data() + shard.begin;
    pool.RunRanges(shard.size(), kGrain, [&](int64_t begin, int64_t end) {
      Update(f, end - begin, value + begin, gradient + begin, moments_[i].first.data() + begin,
             moments_[i].second.data() + begin);
    });
    std::fill(p.gradient.begin(), p.gradient.begin() + shard.begin, 0.0f);
    std::fill(p.gradient.begin() + shard.end, p.gradient.end(), 0.0f);
  }
}

namespace {

constexpr int64_t kBlock = Shards::kBlock;  // elements summed by one thread
constexpr int kLanes = 8;                   // partial sums that the compiler keeps in registers

double SumOfSquares(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

// The sum of each block of this rank's shard.
std::vector<double> BlockSums(const Parameter<float>& p, ThreadPool& pool) {
  const Range shard = p.MyShard();
  std::vector<double> blocks(static_cast<size_t>(Shards::Blocks(shard.size())));
  pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t b) {
    blocks[static_cast<size_t>(b)] = SumOfSquares(p.gradient.data() + shard.begin + b * kBlock,
                                                  std::min(kBlock, shard.size() - b * kBlock));
  });
  return blocks;
}

using Sums = std::map<const Parameter<float>*, double>;

// Adds the sums of squares of the parameters whose shards are distributed over the group. The
// blocks of a parameter are added in order, as if this rank had all of them.
void AddShardedSums(const Catalog& catalog, Collectives& group, ThreadPool& pool, Sums* sums) {
  const auto members = static_cast<size_t>(group.size());
  std::vector<const Parameter<float>*> parameters;
  std::vector<double> mine;
  std::vector<size_t> counts(members);  // blocks of each member
  for (const Parameter<float>* p : catalog.parameters()) {
    if (!p->shards.partial() || catalog.copies().Of(*p) != &group) continue;
    parameters.push_back(p);
    const std::vector<double> blocks = BlockSums(*p, pool);
    mine.insert(mine.end(), blocks.begin(), blocks.end());
    for (int m = 0; m < group.size(); ++m) {
      const Range shard = p->shards.Of(m, p->trained_count());
      counts[static_cast<size_t>(m)] += static_cast<size_t>(Shards::Blocks(shard.size()));
    }
  }
  if (parameters.empty()) return;
  std::vector<size_t> next(members), bytes(members);
  for (size_t m = 0; m < members; ++m) {
    next[m] = m == 0 ? 0 : next[m - 1] + counts[m - 1];
    bytes[m] = counts[m] * sizeof(double);
  }
  std::vector<double> all(next.back() + counts.back());
  group.AllGatherV(mine.data(), all.data(), bytes);
  for (const Parameter<float>* p : parameters) {
    double& sum = (*sums)[p];
    for (int part = 0; part < group.size(); ++part) {
      const int m = (part + p->shards.first) % group.size();
      const Range shard = p->shards.Of(m, p->trained_count());
      for (int64_t b = 0; b < Shards::Blocks(shard.size()); ++b)
        sum += all[next[static_cast<size_t>(m)]++];
    }
  }
}

// The sums of squares of the parameters that are divided into shards.
Sums ShardedSums(const Catalog& catalog, ThreadPool& pool) {
  const GradientGroups& groups = catalog.copies();
  Sums sums;
  if (groups.stage != nullptr) AddShardedSums(catalog, *groups.stage, pool, &sums);
  if (groups.copies != nullptr && groups.copies != groups.stage)
    AddShardedSums(catalog, *groups.copies, pool, &sums);
  if (groups.expert_copies != nullptr) AddShardedSums(catalog, *groups.expert_copies, pool, &sums);
  return sums;
}

}  // namespace

GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool) {
  const Sums sharded = ShardedSums(catalog, pool);
  std::vector<double> mine;
  for (const Parameter<float>* p : catalog.owned()) {
    if (p->shards.partial()) {
      mine.push_back(sharded.at(p));
      continue;
    }
    const std::vector<double> blocks = BlockSums(*p, pool);
    mine.push_back(std::accumulate(blocks.begin(), blocks.end(), 0.0));
  }
  const std::vector<double> sums = catalog.Gather(mine);
  GradientNorm out;
  auto next = sums.begin();
  for (const auto& [name, tensor] : catalog.tensors()) {
    for (size_t piece = 0; piece < tensor.pieces.size(); ++piece) {
      const double sum = *next++;
      // Squares of finite float32 numbers do not overflow in double.
      if (!std::isfinite(sum) && out.not_finite.empty()) out.not_finite = name;
      out.norm += sum;
    }
  }
  out.norm = std::sqrt(out.norm);
  return out;
}

double ClipScale(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace switchyard::train
