// An observer that sums the reports of MoE layers on GPUs, and functions that compute the expected
// sums.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "moe/router/routing_observer.h"
#include "moe/test_layer.h"

namespace switchyard::cuda {

// The reported counts, summed by layer.
struct SummingObserver : RoutingObserver {
  // Which events it requests.
  bool tokens = false, dispatch = false, times = false, active = true;
  using Counts = std::map<int, std::vector<int32_t>>;
  Counts logical, physical, dispatched;
  // By layer and row: the reported choices. A row that is reported twice fails the test.
  std::map<int, std::map<int64_t, std::vector<int32_t>>> rows, physical_rows;
  std::map<uint64_t, MoeTimes> timed;  // by pass number
  int placements = 0, calls = 0;
  std::vector<uint64_t> counted_passes;   // pass number of each call of OnCounts
  std::vector<uint64_t> streamed_passes;  // of those calls that report streamed rows

  void OnPlacement(int, const ExpertPlacement&) override { ++placements; }
  void OnRoute(uint64_t, int layer, const RoutedTokens& t) override {
    ++calls;
    if (t.tokens == 0) return;
    const int64_t k = std::ssize(t.logical) / t.tokens;
    ASSERT_EQ(t.logical.size(), t.physical.size());
    for (int64_t i = 0; i < t.tokens; ++i) {
      const auto row = [&](std::span<const int32_t> all) {
        const auto ids = all.subspan(i * k, k);
        return std::vector<int32_t>(ids.begin(), ids.end());
      };
      EXPECT_TRUE(rows[layer].emplace(t.first_row + i, row(t.logical)).second);
      physical_rows[layer].emplace(t.first_row + i, row(t.physical));
    }
  }
  bool needs_tokens() const override { return tokens; }
  void OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) override {
    ++calls;
    counted_passes.push_back(pass);
    if (counts.streamed) streamed_passes.push_back(pass);
    Add(counts.logical, logical[layer]);
    Add(counts.physical, physical[layer]);
  }
  bool needs_pass(uint64_t) const override { return active; }
  bool needs_dispatch() const override { return dispatch; }
  bool needs_times() const override { return times; }
  void OnTimes(uint64_t pass, const MoeTimes& of_pass) override {
    EXPECT_TRUE(timed.emplace(pass, of_pass).second);
  }
  void OnDispatch(uint64_t, int layer, const GroupedRows& grouped) override {
    ++calls;
    Add(grouped.counts, dispatched[layer]);
  }

  static void Add(std::span<const int32_t> counts, std::vector<int32_t>& sum) {
    sum.resize(counts.size());
    for (size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
  }
};

// The router's choice on the CPU.
inline std::vector<int32_t> ChosenOnCpu(const TestLayer& layer, const std::vector<float>& hidden,
                                        int64_t tokens) {
  ThreadPool pool(1);
  const int experts = layer.spec.num_experts;
  std::vector<float> logits(tokens * experts);
  if (tokens == 0) return {};
  kernels::Linear({.x = hidden.data(),
                   .ldx = layer.spec.hidden,
                   .w = layer.whole.router.w,
                   .bias = layer.whole.router.bias,
                   .y = logits.data(),
                   .ldy = experts,
                   .m = tokens},
                  pool);
  TopK chosen;
  SelectExperts(layer.config.router, logits.data(), tokens, layer.whole.router.correction_bias,
                &chosen, pool);
  return chosen.ids;
}

// Number of occurrences of each of `experts` ids; −1 is not counted.
inline std::vector<int32_t> CountsOf(std::span<const int32_t> ids, int experts) {
  std::vector<int32_t> counts(experts);
  for (const int32_t id : ids)
    if (id >= 0) ++counts[id];
  return counts;
}

}  // namespace switchyard::cuda
