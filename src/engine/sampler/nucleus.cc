#include "engine/sampler/nucleus.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/check.h"

namespace switchyard {

namespace {

// Weights lie in (0, 1]. The bit pattern of a positive float increases with its value. So the
// leading bits are the index of a bucket, in the order of weights. With 8 exponent bits and 5
// mantissa bits, buckets are 3 % wide.
constexpr int kDroppedBits = 18;
constexpr size_t kBuckets = (0x3f800000u >> kDroppedBits) + 1;

size_t BucketOf(float weight) {
  return std::min<size_t>(std::bit_cast<uint32_t>(weight) >> kDroppedBits, kBuckets - 1);
}

}  // namespace

NucleusFilter::NucleusFilter(int64_t vocab_size) : buckets_(kBuckets) {
  border_.reserve(vocab_size);
}

Cutoff NucleusFilter::Cut(std::span<const float> weights, double total, const Params& params) {
  const Cutoff all{std::numeric_limits<float>::min(), std::numeric_limits<int32_t>::max()};
  const Cutoff at_least_min_p{std::max(all.weight, std::min(params.min_p, 1.0f)), all.token};
  const int64_t most = params.top_k > 0 ? params.top_k : std::numeric_limits<int64_t>::max();
  const double mass =
      params.top_p < 1.0f ? params.top_p * total : std::numeric_limits<double>::infinity();
  if (most >= static_cast<int64_t>(weights.size()) && params.top_p >= 1.0f) return at_least_min_p;

  std::fill(buckets_.begin(), buckets_.end(), Bucket{});
  for (const float weight : weights) {
    Bucket& bucket = buckets_[BucketOf(weight)];
    ++bucket.count;
    bucket.mass += weight;
  }

  // Keeps whole buckets, heaviest first, up to the bucket in which the count or the mass reaches
  // its limit. The cutoff lies in that bucket.
  int64_t count = 0;
  double before = 0.0;
  size_t border = kBuckets - 1;
  while (border > 0 && count + buckets_[border].count < most &&
         before + buckets_[border].mass <= mass) {
    count += buckets_[border].count;
    before += buckets_[border].mass;
    --border;
  }
  if (border == 0) return at_least_min_p;  // only zeros are left

  border_.clear();
  for (size_t i = 0; i < weights.size(); ++i)
    if (BucketOf(weights[i]) == border) border_.push_back({weights[i], static_cast<int32_t>(i)});
  std::sort(border_.begin(), border_.end(), [](const Entry& a, const Entry& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  });

  Cutoff last = all;
  for (const Entry& entry : border_) {
    if (count >= most || before > mass) break;
    last = {entry.weight, entry.token};
    ++count;
    before += entry.weight;
  }
  return last.weight < at_least_min_p.weight ? at_least_min_p : last;
}

}  // namespace switchyard
