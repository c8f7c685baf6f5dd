#include "train/gradients.h"

#include <algorithm>
#include <vector>

namespace switchyard::train {
namespace {

// Small tensors are bucketed into one message, to amortize the latency of a collective.
constexpr size_t kBucket = size_t{1} << 18;  // maximum floats of a bucket

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

template <typename Which>
void Sum(std::span<Parameter<float>* const> parameters, Collectives* group, Which which) {
  if (group == nullptr || group->size() == 1) return;
  std::vector<Parameter<float>*> bucket;
  std::vector<float> joined;
  size_t held = 0;
  for (Parameter<float>* p : parameters) {
    if (!which(*p)) continue;
    bucket.push_back(p);
    held += p->gradient.size();
    if (held < kBucket) continue;
    SumOne(bucket, joined, *group);
    held = 0;
  }
  if (!bucket.empty()) SumOne(bucket, joined, *group);
}

}  // namespace

void SumGradients(std::span<Parameter<float>* const> parameters, const GradientGroups& groups) {
  using P = Parameter<float>;
  Sum(parameters, groups.stage, [](const P& p) { return !p.expert && !p.slice.partial(); });
  Sum(parameters, groups.copies, [](const P& p) { return !p.expert && p.slice.partial(); });
  Sum(parameters, groups.expert_copies, [](const P& p) { return p.expert; });
  Sum(parameters, groups.embedding, [](const P& p) { return p.on_two_stages; });
}

void SumGradients(std::span<Parameter<float>* const> parameters, Collectives& all,
                  Collectives* expert_copies) {
  SumGradients(parameters, {.stage = &all, .copies = &all, .expert_copies = expert_copies});
}

}  // namespace switchyard::train
