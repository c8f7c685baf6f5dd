#include "train/optimizer/adamw.h"

#include <cmath>
#include <utility>

#include "core/check.h"

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
    const size_t size = parameters_[i]->gradient.size();
    CHECK(size == 0 || size == parameters_[i]->value.size());
    moments_[i].first.assign(size, 0);
    moments_[i].second.assign(size, 0);
  }
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
    pool.RunRanges(static_cast<int64_t>(p.gradient.size()), kGrain,
                   [&](int64_t begin, int64_t end) {
                     Update(f, end - begin, p.value.data() + begin, p.gradient.data() + begin,
                            moments_[i].first.data() + begin, moments_[i].second.data() + begin);
                   });
  }
}

}  // namespace switchyard::train
