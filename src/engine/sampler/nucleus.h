// top_k, top_p and min_p: which tokens remain.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// The last token that is kept, in the order of falling weight and, among equals, rising id.
struct Cutoff {
  float weight = 0.0f;
  int32_t token = 0;
  bool Keeps(float other_weight, int32_t other) const {
    return other_weight > weight || (other_weight == weight && other <= token);
  }
};

// Filters as SGLang has them: all three look at the probabilities after temperature, none at
// those left by another. top_k keeps the k likeliest, top_p the likeliest until the mass *before* a
// token exceeds p, min_p those of at least min_p times the largest. The likeliest always remains.
//
// A histogram over the weights' leading bits finds the bucket where the cut falls, and only that
// bucket is sorted. Scratch of one rank's sampler.
class NucleusFilter {
 public:
  explicit NucleusFilter(int64_t vocab_size);

  struct Params {
    int32_t top_k = -1;
    float top_p = 1.0f;
    float min_p = 0.0f;
  };
  // `weights`: unnormalised, the largest is 1; `total`: their sum. Zero weights are never kept.
  Cutoff Cut(std::span<const float> weights, double total, const Params& params);

 private:
  struct Bucket {
    int64_t count = 0;
    double mass = 0.0;
  };
  struct Entry {
    float weight;
    int32_t token;
  };
  std::vector<Bucket> buckets_;
  std::vector<Entry> border_;  // the bucket where the cut falls
};

}  // namespace switchyard
