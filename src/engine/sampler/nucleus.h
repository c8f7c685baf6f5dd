// The filters top_k, top_p and min_p.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// The last kept token, in order of descending weight and, among equals, ascending id.
struct Cutoff {
  float weight = 0.0f;
  int32_t token = 0;
  bool Keeps(float other_weight, int32_t other) const {
    return other_weight > weight || (other_weight == weight && other <= token);
  }
};

// Filters with SGLang's semantics: each of the three applies to the probabilities after
// temperature, independent of the others. top_k keeps the k most likely tokens. top_p keeps the
// most likely tokens until the mass *before* a token exceeds p. min_p keeps tokens of at least
// min_p times the largest probability. The most likely token always remains.
//
// A histogram over the weights' leading bits finds the bucket that contains the cutoff, and only
// that bucket is sorted. Each rank's sampler owns one object, with scratch.
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
  std::vector<Entry> border_;  // the bucket that contains the cutoff
};

}  // namespace switchyard
