// The fused kernel is bit-identical to the two kernels that it replaces.
#include "moe/cuda/router/select_and_order.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/testing.h"
#include "moe/router/router_fault.h"

namespace switchyard::cuda {
namespace {

// Outputs of both paths. Output rows to which no slot is assigned are not written.
struct Written {
  Written(int64_t tokens, int64_t slots, int experts, int64_t blocks)
      : faults(tokens * 4),
        logical(slots * 4),
        ids(slots * 4),
        weights(slots * 4),
        zero_weights(tokens * 4),
        position(slots * 4),
        offsets((experts + 1) * 4),
        counts(experts * 4),
        groups(blocks * 4) {}
  std::vector<std::vector<int32_t>> Read() const {
    std::vector<std::vector<int32_t>> all;
    for (const DeviceMemory* m :
         {&faults, &logical, &ids, &weights, &zero_weights, &position, &offsets, &counts, &groups})
      all.push_back(ToHost<int32_t>(*m, static_cast<int64_t>(m->bytes() / 4)));
    return all;
  }
  DeviceMemory faults, logical, ids, weights, zero_weights, position, offsets, counts, groups;
};

TEST(ChooseAndOrder, HasTheBitsOfBoth) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(3);
  const DeviceMemory arrived(sizeof(uint32_t));
  const Stream stream;
  for (int round = 0; round < 120; ++round) {
    const int num_groups = random.Pick({1, 1, 4, 8});
    const int experts = num_groups * static_cast<int>(2 + random.Below(512 / num_groups - 1));
    const int k = static_cast<int>(1 + random.Below(std::min(16, experts)));
    const int64_t tokens = random.Pick<int64_t>({1, 2, 15, 16, 17, 33, 100, 256, 511, 512});
    const bool some_elsewhere = random.Below(2) == 0;  // whether some experts are on other ranks
    const int local = some_elsewhere ? (experts + 1) / 2 : experts;
    std::vector<int32_t> places(experts);
    for (int e = 0; e < experts; ++e) places[e] = e < local ? local - 1 - e : -1;
    const int zero_experts =
        num_groups == 1 && round % 3 == 0 ? std::min(experts, 512 - experts) : 0;
    const int all = experts + zero_experts;
    std::vector<float> scores = random.Normal(tokens * all);
    if (round % 4 == 0) scores[random.Below(std::ssize(scores))] = NAN;
    const DeviceMemory logits = ToDevice(scores);
    const DeviceMemory index = ToDevice(random.Shuffled(static_cast<int>(tokens)));
    const DeviceMemory bias = ToDevice(random.Normal(all)), device_places = ToDevice(places);
    const int64_t slots = tokens * k, blocks = MaxOrderedRows(slots, local) / kGroupBlockRows;
    const DeviceMemory scratch(RowOrderScratch(slots, local) * 4);
    const bool mixer = round % 4 == 2;
    const SelectExpertsParams choice = {.logits = logits.as<float>(),
                                        .correction_bias = round % 2 ? bias.as<float>() : nullptr,
                                        .tokens = tokens,
                                        .num_experts = experts,
                                        .top_k = k,
                                        .zero_experts = zero_experts,
                                        .scoring = mixer ? kSparseMixerScoring : round % 3,
                                        .renormalize = round % 5 == 0,
                                        .num_groups = mixer ? 1 : num_groups,
                                        .topk_groups = mixer ? 1 : (num_groups + 1) / 2,
                                        .scaling = 1.5f,
                                        .jitter = 0.1f,
                                        .places = device_places.as<int32_t>()};
    const auto run = [&](bool at_once) {
      const Written out(tokens, slots, local, blocks);
      SelectExpertsParams c = choice;
      c.logical = out.logical.as<int32_t>();
      c.ids = out.ids.as<int32_t>();
      c.weights = out.weights.as<float>();
      c.zero_weights = out.zero_weights.as<float>();
      c.faults = {.records = out.faults.as<int32_t>(),
                  .index = index.as<int32_t>(),
                  .end = tokens,
                  .of_expert_0 = FaultOf(2, 0)};
      const RowOrderParams order = {.in = {.segments = 1, .capacity = tokens, .tokens = tokens},
                                    .ids = c.ids,
                                    .k = k,
                                    .experts = local,
                                    .blocks = blocks,
                                    .scratch = scratch.as<int32_t>(),
                                    .out = {out.position.as<int32_t>(), out.offsets.as<int32_t>(),
                                            out.counts.as<int32_t>(), out.groups.as<int32_t>()}};
      if (at_once) {
        const PdlStream chain(stream.get(), IsHopper());
        Check(SelectAndOrder(c, order, arrived.as<uint32_t>(), chain), "choice and order");
      } else {
        Check(SelectExpertsOnDevice(c, stream.get()), "choice");
        Check(OrderRows(order, stream.get()), "order");
      }
      stream.Synchronize();
      return out.Read();
    };
    EXPECT_EQ(run(true), run(false))
        << "round " << round << " tokens " << tokens << " experts " << experts << " and "
        << zero_experts << " here " << local << " top " << k;
    EXPECT_EQ(ToHost<uint32_t>(arrived, 1)[0], 0u);
  }
}

TEST(ChooseAndOrder, RefusesWhatDoesNotJoin) {
  const SelectExpertsParams choice = {.tokens = 3, .num_experts = 8, .top_k = 2};
  RowOrderParams order = {.in = {.segments = 1, .capacity = 3, .tokens = 3}, .k = 2, .experts = 8};
  order.in.segments = 2;
  EXPECT_EQ(SelectAndOrder(choice, order, nullptr, nullptr), cudaErrorInvalidValue);
  order.in.segments = 1;
  order.k = 3;
  EXPECT_EQ(SelectAndOrder(choice, order, nullptr, nullptr), cudaErrorInvalidValue);
  SelectExpertsParams many = choice;
  many.tokens = order.in.tokens = kMaxTokensToOrder + 1;
  order.k = 2;
  EXPECT_EQ(SelectAndOrder(many, order, nullptr, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace switchyard::cuda
