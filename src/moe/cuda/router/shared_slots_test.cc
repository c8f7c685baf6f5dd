#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "moe/cuda/router/router_logits.h"
#include "moe/cuda/testing.h"
#include "moe/router/physical_choice.h"

namespace switchyard::cuda {
namespace {

struct Case {
  int64_t tokens = 0;
  int k = 1, ranks = 1, rank = 0, experts = 1;
  bool gated = false;
  double none = 0.0;   // share of slots without an expert
  double first = 0.0;  // share of slots on the first expert
};

std::vector<int64_t> RowsOfRanks(const TopK& topk, const ExpertMap& experts, int ranks) {
  std::vector<int64_t> rows(ranks, 0);
  for (const int32_t id : topk.ids)
    if (id >= 0) ++rows[experts.Owner(id)];
  std::ranges::sort(rows);
  return rows;
}

void ExpectAsOnCpu(const Case& c, uint64_t seed) {
  SCOPED_TRACE(::testing::Message()
               << c.tokens << " tokens, k " << c.k << ", rank " << c.rank << " of " << c.ranks);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> share;
  std::uniform_int_distribution<int32_t> expert(0, c.experts - 1);
  const ExpertMap experts(c.experts, c.ranks, /*shared_dispatched=*/true);
  TopK cpu;
  cpu.tokens = c.tokens;
  cpu.k = c.k;
  for (int64_t i = 0; i < c.tokens * c.k; ++i) {
    const double x = share(random);
    cpu.ids.push_back(x < c.none ? -1 : x < c.none + c.first ? 0 : expert(random));
    cpu.weights.push_back(static_cast<float>(share(random)));
  }
  std::vector<float> logits, gates;
  for (int64_t t = 0; t < c.tokens; ++t) {
    logits.push_back(static_cast<float>(4.0 * share(random) - 2.0));
    gates.push_back(1.0f / (1.0f + std::exp(-logits.back())));
  }
  std::vector<int32_t> owners(experts.size());
  for (int e = 0; e < experts.size(); ++e) owners[e] = experts.Owner(e);

  const DeviceMemory ids = ToDevice(cpu.ids), weights = ToDevice(cpu.weights);
  const DeviceMemory owner_of = ToDevice(owners), gate_logits = ToDevice(logits);
  const int64_t slots = c.tokens * (c.k + 1);
  const DeviceMemory wide_ids(slots * sizeof(int32_t)), wide_weights(slots * sizeof(float));
  Check(AppendSharedSlots({.ids = ids.as<int32_t>(),
                           .weights = weights.as<float>(),
                           .gates = c.gated ? gate_logits.as<float>() : nullptr,
                           .owners = owner_of.as<int32_t>(),
                           .tokens = c.tokens,
                           .k = c.k,
                           .ranks = c.ranks,
                           .rank = c.rank,
                           .first_shared = experts.size() - c.ranks,
                           .wide_ids = wide_ids.as<int32_t>(),
                           .wide_weights = wide_weights.as<float>()},
                          nullptr),
        "slots of the shared expert");
  TopK gpu;
  gpu.ids = ToHost<int32_t>(wide_ids, slots);
  gpu.weights = ToHost<float>(wide_weights, slots);
  AppendSharedSlots(experts, c.ranks, c.rank, {}, c.gated ? gates.data() : nullptr, &cpu);
  EXPECT_EQ(RowsOfRanks(gpu, experts, c.ranks), RowsOfRanks(cpu, experts, c.ranks));
  for (int64_t i = 0; i < slots; ++i) {
    if (i % (c.k + 1) < c.k) {
      ASSERT_EQ(gpu.ids[i], cpu.ids[i]);
    } else {
      ASSERT_GE(gpu.ids[i], experts.size() - c.ranks);
      ASSERT_LT(gpu.ids[i], experts.size());
    }
    ASSERT_NEAR(gpu.weights[i], cpu.weights[i], 1e-6);
  }
}

TEST(SharedSlots, LevelTheRowsOfRanksAsOnCpus) {
  SKIP_WITHOUT_GPU();
  uint64_t seed = 0;
  for (const int64_t tokens : {1, 2, 7, 64, 1000, 5000})
    for (const int ranks : {1, 2, 3, 8, 16})
      for (const double first : {0.0, 0.5}) {
        const int rank = static_cast<int>(seed % ranks);
        ExpectAsOnCpu(
            {tokens, 1 + static_cast<int>(seed % 15), ranks, rank, 48, seed % 2 == 0, 0.1, first},
            seed);
        ++seed;
      }
}

}  // namespace
}  // namespace switchyard::cuda
