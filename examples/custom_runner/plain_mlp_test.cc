// Compares the runner with the built-in one on random experts and rows. Exits 1 if they differ.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "my_backends.h"

namespace {

using namespace switchyard;

constexpr int64_t kHidden = 48, kIntermediate = 40;

class Random {
 public:
  std::vector<float> Normal(int64_t count, float deviation) {
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = normal(engine_);
    return values;
  }
  WeightView Weight(int64_t n, int64_t k) {
    const auto values = std::make_shared<std::vector<float>>(Normal(n * k, 0.2f));
    return {.data = values->data(), .stored_k = k, .n = n, .k = k, .owner = values};
  }

 private:
  std::mt19937 engine_{1};
};

}  // namespace

int main() {
  MoeBackends backends = BuiltinMoeBackends();
  AddPlainMlp(backends);
  const auto own = backends.runners.Find("plain_mlp").make();
  const auto built_in = backends.runners.Find("grouped_mlp").make();

  // Four experts; the second one has no rows.
  const std::vector<int32_t> offsets = {0, 3, 3, 20, 21};
  Random random;
  std::vector<kernels::ExpertWeights> experts;
  for (size_t e = 0; e + 1 < offsets.size(); ++e)
    experts.push_back({.gate = random.Weight(kIntermediate, kHidden),
                       .up = random.Weight(kIntermediate, kHidden),
                       .down = random.Weight(kHidden, kIntermediate)});
  const int64_t count = offsets.back();
  const std::vector<float> x = random.Normal(count * kHidden, 1.0f);
  GroupedRows rows;
  rows.x = x.data();
  rows.ldx = kHidden;
  rows.num_rows = count;
  rows.offsets = offsets;
  ThreadPool pool(2);
  std::vector<float> got(count * kHidden), want(count * kHidden);
  own->Run({.experts = experts}, rows, kHidden, pool, got.data());
  built_in->Run({.experts = experts}, rows, kHidden, pool, want.data());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= 1e-4f * (1.0f + std::abs(want[i]))) continue;
    std::printf("row %zu, element %zu: %g, but grouped_mlp has %g\n", i / kHidden, i % kHidden,
                got[i], want[i]);
    return 1;
  }

  // The last row alone is computed alike: outputs do not depend on the other rows of a call.
  const std::vector<int32_t> one = {0, 0, 0, 0, 1};
  rows.x = x.data() + (count - 1) * kHidden;
  rows.num_rows = 1;
  rows.offsets = one;
  std::vector<float> alone(kHidden);
  own->Run({.experts = experts}, rows, kHidden, pool, alone.data());
  if (!std::ranges::equal(alone, std::span(got).last(kHidden))) {
    std::puts("the output of a row depends on the other rows of the call");
    return 1;
  }
  std::puts("plain_mlp: same outputs as grouped_mlp");
  return 0;
}
