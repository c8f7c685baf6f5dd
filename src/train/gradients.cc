#include "train/gradients.h"

#include <algorithm>
#include <vector>

namespace switchyard::train {
namespace {

// Small tensors share a message: what a collective costs by itself is paid once.
constexpr size_t kBucket = size_t{1} << 18;  // floats

void SumOne(std::vector<Parameter<float>*>& bucket, std::vector<float>& joined, Collectives& all) {
  joined.clear();
  for (const Parameter<float>* p : bucket)
    joined.insert(joined.end(), p->gradient.begin(), p->gradient.end());
  all.AllReduceSum(joined.data(), joined.size());
  auto next = joined.begin();
  for (Parameter<float>* p : bucket) {
    std::copy_n(next, p->gradient.size(), p->gradient.begin());
    next += static_cast<std::ptrdiff_t>(p->gradient.size());
  }
  bucket.clear();
}

void Sum(std::span<Parameter<float>* const> parameters, bool experts, Collectives& all) {
  if (all.size() == 1) return;
  std::vector<Parameter<float>*> bucket;
  std::vector<float> joined;
  size_t held = 0;
  for (Parameter<float>* p : parameters) {
    if (p->expert != experts) continue;
    bucket.push_back(p);
    held += p->gradient.size();
    if (held < kBucket) continue;
    SumOne(bucket, joined, all);
    held = 0;
  }
  if (!bucket.empty()) SumOne(bucket, joined, all);
}

}  // namespace

void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies) {
  Sum(parameters, false, all);
  if (expert_copies != nullptr) Sum(parameters, true, *expert_copies);
}

}  // namespace switchyard::train
