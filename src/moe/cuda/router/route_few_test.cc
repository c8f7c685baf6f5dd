// The kernel for few tokens is bit-identical to the two kernels that it replaces.

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/router/select_and_order.h"
#include "moe/cuda/testing.h"

namespace switchyard::cuda {
namespace {

struct Written {
  Written(int64_t tokens, int64_t slots, int experts, int64_t blocks)
      : logical(slots * 4),
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
         {&logical, &ids, &weights, &zero_weights, &position, &offsets, &counts, &groups})
      all.push_back(ToHost<int32_t>(*m, static_cast<int64_t>(m->bytes() / 4)));
    return all;
  }
  DeviceMemory logical, ids, weights, zero_weights, position, offsets, counts, groups;
};

TEST(RouteFewTokens, HasTheBitsOfTheTwoKernels) {
  SKIP_WITHOUT_GPU();
  if (!IsHopper()) GTEST_SKIP() << "needs a Hopper GPU: a cluster of blocks";
  kernels::Random random(5);
  const Stream stream;
  const PdlStream chain(stream.get(), true);
  const DeviceMemory arrived(sizeof(uint32_t));
  for (int round = 0; round < 120; ++round) {
    const int num_groups = random.Pick({1, 1, 4});
    const int experts = round % 4 == 0
                            ? 128
                            : num_groups * static_cast<int>(2 + random.Below(512 / num_groups - 1));
    const int64_t tokens = random.Pick<int64_t>({1, 2, 7, 8, 9, 15, 16});
    const int most = tokens > 8 ? 16 : 32;  // slots of a token
    const int top_k = static_cast<int>(1 + random.Below(std::min(most, experts)));
    const int64_t k = random.Pick<int64_t>({4, 60, 64, 516, 2048, 2880, 7168});
    const int zero_experts =
        num_groups == 1 && round % 3 == 1 ? std::min(experts, 512 - experts) : 0;
    const int all = experts + zero_experts;
    // Half or all of the experts are on this rank.
    const int local = round % 3 == 0 ? (experts + 1) / 2 : experts;
    SCOPED_TRACE(testing::Message()
                 << "round " << round << " tokens " << tokens << " experts " << experts << " and "
                 << zero_experts << " k " << k << " top " << top_k);
    std::vector<int32_t> places(experts);
    for (int e = 0; e < experts; ++e) places[e] = e < local ? local - 1 - e : -1;
    std::vector<float> rows = random.Normal(tokens * k);
    if (round % 5 == 0) rows[random.Below(std::ssize(rows))] = NAN;
    std::vector<uint16_t> router;
    for (const float w : random.Normal(all * k)) router.push_back(ToBF16(w).bits);
    const DeviceMemory x = ToDevice(rows), w = ToDevice(router), y(tokens * all * 4);
    const DeviceMemory bias = ToDevice(random.Normal(all)), place = ToDevice(places);
    const DeviceMemory correction = ToDevice(random.Normal(all));
    const RouterLogitsParams logits = {.x = x.as<float>(),
                                       .w = w.data(),
                                       .w_is_bf16 = true,
                                       .bias = round % 2 ? bias.as<float>() : nullptr,
                                       .y = y.as<float>(),
                                       .m = tokens,
                                       .n = all,
                                       .k = k};
    const int64_t slots = tokens * top_k, blocks = MaxOrderedRows(slots, local) / kGroupBlockRows;
    const DeviceMemory scratch(RowOrderScratch(slots, local) * 4);
    const auto run = [&](bool at_once) {
      const Written out(tokens, slots, local, blocks);
      const bool mixer = round % 4 == 3;
      const SelectExpertsParams choice = {
          .logits = y.as<float>(),
          .correction_bias = round % 7 == 0 && !mixer ? correction.as<float>() : nullptr,
          .tokens = tokens,
          .num_experts = experts,
          .top_k = top_k,
          .zero_experts = zero_experts,
          .scoring = mixer ? kSparseMixerScoring : round % 3,
          .renormalize = round % 2 == 0,
          .num_groups = experts % num_groups == 0 && !mixer ? num_groups : 1,
          .topk_groups = experts % num_groups == 0 && !mixer ? (num_groups + 1) / 2 : 1,
          .scaling = 1.5f,
          .jitter = 0.1f,
          .places = place.as<int32_t>(),
          .logical = out.logical.as<int32_t>(),
          .ids = out.ids.as<int32_t>(),
          .weights = out.weights.as<float>(),
          .zero_weights = out.zero_weights.as<float>()};
      const RowOrderParams order = {.in = {.segments = 1, .capacity = tokens, .tokens = tokens},
                                    .ids = choice.ids,
                                    .k = top_k,
                                    .experts = local,
                                    .blocks = blocks,
                                    .scratch = scratch.as<int32_t>(),
                                    .out = {out.position.as<int32_t>(), out.offsets.as<int32_t>(),
                                            out.counts.as<int32_t>(), out.groups.as<int32_t>()}};
      if (at_once) {
        EXPECT_TRUE(RoutesFewTokens(logits, top_k, chain));
        Check(RouteFewTokens(logits, choice, order, chain), "routing of few tokens");
      } else {
        Check(RouterLogits(logits, stream.get()), "logits");
        Check(SelectAndOrder(choice, order, arrived.as<uint32_t>(), stream.get()), "choice");
      }
      stream.Synchronize();
      return out.Read();
    };
    EXPECT_EQ(run(true), run(false));
  }
}

TEST(RouteFewTokens, RefusesWhatItDoesNotSupport) {
  const PdlStream early(nullptr, true);
  RouterLogitsParams logits = {.w_is_bf16 = true, .m = 2, .n = 8, .k = 64};
  EXPECT_TRUE(RoutesFewTokens(logits, 2, early));
  EXPECT_FALSE(RoutesFewTokens(logits, 2, nullptr));
  EXPECT_FALSE(RoutesFewTokens(logits, kMaxTopK + 1, early));
  logits.m = 9;
  EXPECT_FALSE(RoutesFewTokens(logits, kMaxTopK, early));  // too many slots
  EXPECT_TRUE(RoutesFewTokens(logits, kMaxTopK / 2, early));
  logits.m = kMaxTokensToRoute + 1;
  EXPECT_FALSE(RoutesFewTokens(logits, 2, early));
  logits.m = 2;
  logits.w_is_bf16 = false;
  EXPECT_FALSE(RoutesFewTokens(logits, 2, early));
  logits.w_is_bf16 = true;
  const SelectExpertsParams choice = {.tokens = 3, .num_experts = 8, .top_k = 2};
  const RowOrderParams order = {
      .in = {.segments = 1, .capacity = 3, .tokens = 3}, .k = 2, .experts = 8};
  EXPECT_EQ(RouteFewTokens(logits, choice, order, early), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace switchyard::cuda
