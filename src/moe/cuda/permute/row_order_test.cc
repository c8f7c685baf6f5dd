#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/testing.h"

namespace switchyard::cuda {
namespace {

struct Order {
  std::vector<int32_t> position, offsets, counts, groups;
  bool operator==(const Order&) const = default;
};

struct Case {
  int segments, k, experts;
  int64_t capacity, tokens;
  std::vector<int32_t> segment_rows;  // empty: `tokens` each
  std::vector<int32_t> ids;           // [segments · capacity, k]
  int64_t blocks() const {
    return MaxOrderedRows(segments * tokens * k, experts) / kGroupBlockRows;
  }
};

// The expected order. Positions of rows that do not exist are −7.
Order Wanted(const Case& c) {
  Order order;
  order.position.assign(c.ids.size(), -7);
  order.groups.assign(c.blocks(), -1);
  int32_t next = 0;
  for (int e = 0; e < c.experts; ++e) {
    order.offsets.push_back(next);
    int32_t count = 0;
    for (int s = 0; s < c.segments; ++s) {
      const int64_t rows = c.segment_rows.empty() ? c.tokens : c.segment_rows[s];
      for (int64_t i = s * c.capacity * c.k; i < (s * c.capacity + rows) * c.k; ++i) {
        if (c.ids[i] == e) order.position[i] = next + count++;
        if (c.ids[i] < 0) order.position[i] = -1;
      }
    }
    order.counts.push_back(count);
    const auto blocks = (count + kGroupBlockRows - 1) / kGroupBlockRows;
    for (int b = 0; b < blocks; ++b) order.groups[next / kGroupBlockRows + b] = e;
    next += blocks * kGroupBlockRows;
  }
  order.offsets.push_back(next);
  return order;
}

Order OnDevice(const Case& c) {
  const DeviceMemory ids = ToDevice(c.ids), rows = ToDevice(c.segment_rows);
  const DeviceMemory position = ToDevice(std::vector<int32_t>(c.ids.size(), -7));
  const DeviceMemory offsets((c.experts + 1) * 4), counts(c.experts * 4), groups(c.blocks() * 4);
  const DeviceMemory scratch(RowOrderScratch(c.segments * c.tokens * c.k, c.experts) * 4);
  Check(OrderRows({.in = {.segments = c.segments,
                          .capacity = c.capacity,
                          .tokens = c.tokens,
                          .counts = c.segment_rows.empty() ? nullptr : rows.as<int32_t>()},
                   .ids = ids.as<int32_t>(),
                   .k = c.k,
                   .experts = c.experts,
                   .blocks = c.blocks(),
                   .scratch = scratch.as<int32_t>(),
                   .out = {position.as<int32_t>(), offsets.as<int32_t>(), counts.as<int32_t>(),
                           groups.as<int32_t>()}},
                  nullptr),
        "order of rows");
  return {ToHost<int32_t>(position, std::ssize(c.ids)), ToHost<int32_t>(offsets, c.experts + 1),
          ToHost<int32_t>(counts, c.experts), ToHost<int32_t>(groups, c.blocks())};
}

Case RandomCase(kernels::Random& random, int64_t most_tokens) {
  Case c{.segments = random.Pick({1, 2, 4, 8}),
         .k = random.Pick({1, 2, 4, 8, 10}),
         .experts = random.Pick({1, 3, 32, 128, 256, 512})};
  c.tokens = 1 + random.Below(most_tokens);
  c.capacity = c.tokens + random.Below(3) * 5;
  if (random.Below(2) == 0)
    for (int s = 0; s < c.segments; ++s)
      c.segment_rows.push_back(static_cast<int32_t>(random.Below(c.tokens + 1)));
  const int64_t used = 1 + random.Below(c.experts);  // some experts have no rows
  const int64_t none = random.Pick({0, 1, 4});
  for (int64_t i = 0; i < c.segments * c.capacity * c.k; ++i)
    c.ids.push_back(
        static_cast<int32_t>(random.Below(used + none) - none < 0 ? -1 : random.Below(used)));
  // Ids past a segment's rows must not be read.
  if (!c.segment_rows.empty())
    for (int s = 0; s < c.segments; ++s)
      for (int64_t i = (s * c.capacity + c.segment_rows[s]) * c.k; i < (s + 1) * c.capacity * c.k;
           ++i)
        c.ids[i] = 1 << 30;
  return c;
}

TEST(OrderRows, IsAStableSortByExpert) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(3);
  for (int round = 0; round < 40; ++round) {
    const Case c = RandomCase(random, round % 4 == 3 ? 3000 : 60);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << c.segments << " segments of "
                                      << c.tokens << ", k " << c.k << ", experts " << c.experts);
    const Order got = OnDevice(c), want = Wanted(c);
    EXPECT_EQ(got.offsets, want.offsets);
    EXPECT_EQ(got.counts, want.counts);
    EXPECT_EQ(got.groups, want.groups);
    EXPECT_TRUE(got.position == want.position);
  }
}

TEST(OrderRows, TakesNoRowsAtAll) {
  SKIP_WITHOUT_GPU();
  const Case c{.segments = 2,
               .k = 2,
               .experts = 3,
               .capacity = 4,
               .tokens = 4,
               .segment_rows = {0, 0},
               .ids = std::vector<int32_t>(16, 1 << 30)};
  EXPECT_TRUE(OnDevice(c) == Wanted(c));
}

TEST(AddWeightedRows, AddsRowsAndSkipsWeightZero) {
  SKIP_WITHOUT_GPU();
  kernels::Random random(8);
  for (const auto& [tokens, hidden] :
       {std::pair<int64_t, int64_t>(0, 64), {1, 4}, {7, 1028}, {1300, 64}, {3, 6144}}) {
    const std::vector<float> x = random.Normal(tokens * hidden);
    std::vector<float> weights = random.Normal(tokens), want = random.Normal(tokens * hidden);
    for (int64_t t = 0; t < tokens; t += 3) weights[t] = 0.0f;
    const DeviceMemory rows = ToDevice(x), factors = ToDevice(weights), y = ToDevice(want);
    for (int64_t i = 0; i < tokens * hidden; ++i) want[i] += weights[i / hidden] * x[i];
    Check(AddWeightedRows({.x = rows.as<float>(),
                           .weights = factors.as<float>(),
                           .tokens = tokens,
                           .hidden = hidden,
                           .y = y.as<float>()},
                          nullptr),
          "weighted rows");
    const std::vector<float> got = ToHost<float>(y, tokens * hidden);
    for (int64_t i = 0; i < tokens * hidden; ++i)
      ASSERT_NEAR(got[i], want[i], 1e-6 * (1 + std::abs(want[i]))) << i;
  }
  EXPECT_EQ(AddWeightedRows({.tokens = 1, .hidden = 6}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace switchyard::cuda
