#include "kernels/recurrent.h"

#include <utility>

#include "kernels/recurrent_testing.h"

namespace switchyard::kernels {
namespace {

class RecurrentTest : public IsaTest {};

constexpr StateRule kRules[] = {StateRule::kDelta, StateRule::kKeyDelta, StateRule::kMamba2,
                                StateRule::kFixed};

TEST_P(RecurrentTest, OpsMatchTheReference) {
  Random random(3);
  ThreadPool pool(3);
  const auto ops = MakeCpuRecurrentOps(pool);
  ReferenceRecurrentOps reference;
  for (int round = 0; round < 32; ++round) {
    const int64_t value_dims[] = {1, 7, 16, 32, 64, 100, 128, 130};
    const RecurrentLayer layer(random, {.rows = 23,
                                        .key_dim = random.Pick({1, 5, 16, 32}),
                                        .value_dim = value_dims[round / 4],
                                        .width = random.Pick({1, 2, 4}),
                                        .rule = kRules[round % 4]});
    SCOPED_TRACE(::testing::Message() << "rule " << round % 4 << " value_dim " << layer.value_dim);
    // The second sequence continues from slot 3, which the first one has not written yet.
    const StateSpan spans[] = {
        {.row_begin = 0, .rows = 14, .to = 0, .copies = {{.rows = 1, .slot = 4}, {9, 5}}},
        {.row_begin = 14, .rows = 1, .to = 1},
        {.row_begin = 15, .rows = 8, .from = 3, .to = 2, .copies = {{.rows = 2, .slot = 6}}}};
    std::vector<float> got = layer.States();
    const std::vector<float> start = random.Normal(layer.slot_floats);
    std::ranges::copy(start, got.begin() + 3 * layer.slot_floats);
    std::vector<float> want = got;
    const auto outputs = layer.Run(*ops, spans, got);
    ExpectNear(outputs, layer.Run(reference, spans, want));
    for (const int64_t slot : {0, 1, 2, 4, 5, 6})
      ExpectNear(layer.Slot(got, slot), layer.Slot(want, slot));
    EXPECT_TRUE(SameBits(layer.Slot(got, 3), start));
    EXPECT_TRUE(SameBits(layer.Slot(got, 7), layer.Slot(want, 7)));
  }
}

// Chunks, other sequences of the pass, copies and threads do not change a bit.
TEST_P(RecurrentTest, ChunksDoNotChangeResults) {
  Random random(8);
  ThreadPool one(1), three(3);
  const auto alone = MakeCpuRecurrentOps(one), ops = MakeCpuRecurrentOps(three);
  for (int round = 0; round < 16; ++round) {
    constexpr int64_t kRows = 37, kValueDims[] = {5, 32, 64, 129};
    const int64_t value_dim = kValueDims[round / 4];
    const RecurrentLayer layer(random, {.rows = kRows,
                                        .key_dim = random.Pick({3, 32}),
                                        .value_dim = value_dim,
                                        .width = random.Pick({1, 2, 4}),
                                        .rule = kRules[round % 4]});
    std::vector<float> whole = layer.States();
    const StateSpan all[] = {{.rows = kRows, .to = 0, .copies = {{.rows = 20, .slot = 1}}}};
    const std::vector<float> want = layer.Run(*alone, all, whole);
    std::vector<float> states = layer.States(), got;
    int32_t from = -1, row = 0;
    for (const int32_t rows : {1, 1, 12, 6, 1, 16}) {
      const int32_t to = from < 0 ? 2 : 5 - from;  // slots 2 and 3 in turn
      const StateSpan span[] = {{.row_begin = row, .rows = rows, .from = from, .to = to}};
      const std::vector<float> part = layer.Run(*ops, span, states);
      got.insert(got.end(), part.begin(), part.end());
      from = to;
      row += rows;
      if (row == 20) {
        EXPECT_TRUE(SameBits(layer.Slot(states, to), layer.Slot(whole, 1))) << value_dim;
      }
    }
    EXPECT_TRUE(SameBits(got, want)) << value_dim << " rule " << round % 4;
    EXPECT_TRUE(SameBits(layer.Slot(states, from), layer.Slot(whole, 0))) << value_dim;
  }
}

TEST_P(RecurrentTest, StatesAfterEachRowAreThoseOfSingleRows) {
  Random random(4);
  ThreadPool pool(2);
  const auto ops = MakeCpuRecurrentOps(pool);
  for (const StateRule rule : kRules) {
    const RecurrentLayer layer(random, {.rows = 8, .key_dim = 16, .value_dim = 33, .rule = rule});
    const StateSpan all[] = {RecurrentLayer::EachRow()};
    std::vector<float> whole = layer.States(), states = whole, got;
    const std::vector<float> want = layer.Run(*ops, all, whole);
    for (int32_t row = 0; row < 8; ++row) {
      const StateSpan one[] = {{.row_begin = row, .rows = 1, .from = row - 1, .to = row}};
      const std::vector<float> out = layer.Run(*ops, one, states);
      got.insert(got.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(got, want));
    EXPECT_TRUE(SameBits(states, whole));
  }
}

// Decays of Kimi Delta Attention for inputs of any size. GatedDelta leaves them in `gates`.
TEST_P(RecurrentTest, DecaysOfKeysMatchTheReference) {
  if (GetParam() == Isa::kReference) GTEST_SKIP() << "keeps decays in double";
  ThreadPool pool(1);
  const std::vector<float> inputs = {-200.0f, -88.0f, -30.0f, -10.0f, -1.0f, -1e-3f, 0.0f,
                                     1e-3f,   0.7f,   1.0f,   5.0f,   20.0f, 90.0f,  1e4f};
  const auto n = std::ssize(inputs);
  for (const auto& [rate, bound] :
       {std::pair{-1e-3f, 0.0f}, std::pair{-0.3f, 0.0f}, std::pair{-1.0f, 0.0f},
        std::pair{-16.0f, 0.0f}, std::pair{-1e-3f, -5.0f}, std::pair{-1.0f, -5.0f},
        std::pair{-16.0f, -0.2f}}) {
    // One head whose keys have the inputs, with a bias that `a` cancels in part.
    std::vector<float> a(n), bias(n), q(n, 1.0f), k(n, 1.0f), states(n), gates(n + 1);
    for (int64_t i = 0; i < n; ++i) {
      bias[i] = i % 2 == 0 ? 0.0f : 0.25f;
      a[i] = inputs[i] - bias[i];
    }
    const float v = 1.0f, b = 0.0f;
    float out = 0.0f;
    const StateSpan span = {.rows = 1, .to = 0};
    MakeCpuRecurrentOps(pool)->GatedDelta({.q = q.data(),
                                           .k = k.data(),
                                           .v = &v,
                                           .ld = n,
                                           .a = a.data(),
                                           .b = &b,
                                           .ld_gates = n,
                                           .rate = &rate,
                                           .bias = bias.data(),
                                           .rule = StateRule::kKeyDelta,
                                           .bound = bound,
                                           .key_heads = 1,
                                           .value_heads = 1,
                                           .key_dim = n,
                                           .value_dim = 1,
                                           .states = states.data(),
                                           .state_stride = n,
                                           .sequences = &span,
                                           .num_sequences = 1,
                                           .m = 1,
                                           .gates = gates.data(),
                                           .out = &out,
                                           .ldo = 1});
    for (int64_t i = 0; i < n; ++i) {
      const double x = double{a[i]} + bias[i];
      const double exponent = bound < 0.0f ? bound / (1.0 + std::exp(rate * x))
                                           : rate * (x > 20.0 ? x : std::log1p(std::exp(x)));
      const double want = std::exp(exponent);
      EXPECT_NEAR(gates[i], want, 3e-7 * (1 - exponent) * want + 1e-37)
          << x << ' ' << rate << ' ' << bound;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RecurrentTest,
                         ::testing::Values(Isa::kReference, Isa::kAvx2, Isa::kAvx512), IsaName);

}  // namespace
}  // namespace switchyard::kernels
