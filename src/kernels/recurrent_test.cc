#include "kernels/recurrent.h"

#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

// A layer of random sizes, its inputs for `rows` rows, and the memory of eight slots.
struct Layer {
  Layer(Random& random, int64_t row_count, int64_t key_width, int64_t value_width)
      : rows(row_count),
        key_heads(random.Pick({1, 3})),
        group(random.Pick({1, 2})),
        key_dim(key_width),
        value_dim(value_width),
        width(random.Pick({1, 2, 4})),
        channels(2 * key_dim + group * value_dim),
        head_floats(channels + group * value_dim + 3),
        conv_floats((width - 1) * key_heads * channels),
        slot_floats(conv_floats + key_heads * group * key_dim * value_dim),
        x(random.Normal(rows * key_heads * head_floats)),
        gates(random.Normal(rows * key_heads * 2 * group)),
        conv(random.Normal(width * key_heads * channels, 0.5f)),
        rate(random.Normal(key_heads * group)),
        bias(random.Normal(key_heads * group)),
        norm(random.Normal(value_dim)) {
    for (float& r : rate) r = -std::exp(r);
  }

  // Runs the ops on the rows of `spans`, which are adjacent, and returns the outputs of all rows.
  std::vector<float> Run(RecurrentOps& ops, std::span<const StateSpan> spans,
                         std::vector<float>& states) const {
    const int64_t first = spans.front().row_begin;
    const int64_t m = spans.back().row_begin + spans.back().rows - first;
    std::vector<StateSpan> own(spans.begin(), spans.end());
    for (StateSpan& span : own) span.row_begin -= static_cast<int32_t>(first);
    const int64_t values = key_heads * group * value_dim;
    std::vector<float> y(m * key_heads * channels), scratch(m * key_heads * group * 2);
    std::vector<float> out(m * values);
    const float* input = x.data() + first * key_heads * head_floats;
    ops.ShortConv({.x = input,
                   .ldx = key_heads * head_floats,
                   .group_stride = head_floats,
                   .groups = key_heads,
                   .channels = channels,
                   .width = width,
                   .weight = conv.data(),
                   .states = states.data(),
                   .state_stride = slot_floats,
                   .sequences = own.data(),
                   .num_sequences = std::ssize(own),
                   .m = m,
                   .y = y.data(),
                   .ldy = key_heads * channels});
    const float* ba = gates.data() + first * key_heads * 2 * group;
    ops.GatedDelta({.q = y.data(),
                    .k = y.data() + key_dim,
                    .v = y.data() + 2 * key_dim,
                    .ld = key_heads * channels,
                    .q_stride = channels,
                    .k_stride = channels,
                    .v_stride = channels,
                    .a = ba + group,
                    .b = ba,
                    .ld_gates = key_heads * 2 * group,
                    .a_stride = 2 * group,
                    .b_stride = 2 * group,
                    .rate = rate.data(),
                    .bias = bias.data(),
                    .key_heads = key_heads,
                    .value_heads = key_heads * group,
                    .key_dim = key_dim,
                    .value_dim = value_dim,
                    .states = states.data() + conv_floats,
                    .state_stride = slot_floats,
                    .sequences = own.data(),
                   .num_sequences = std::ssize(own),
                   .m = m,
                    .m = m,
                    .gates = scratch.data(),
                    .out = out.data(),
                    .ldo = values});
    ops.GatedNorm({.x = out.data(),
                   .ldx = values,
                   .weight = norm.data(),
                   .z = input + channels,
                   .ldz = key_heads * head_floats,
                   .z_stride = head_floats,
                   .group = group,
                   .m = m,
                   .heads = key_heads * group,
                   .n = value_dim});
    return out;
  }

  std::vector<float> Slot(const std::vector<float>& states, int64_t slot) const {
    return {states.begin() + slot * slot_floats, states.begin() + (slot + 1) * slot_floats};
  }
  std::vector<float> States() const { return std::vector<float>(8 * slot_floats, 1e30f); }

  int64_t rows, key_heads, group, key_dim, value_dim, width, channels, head_floats, conv_floats,
      slot_floats;
  std::vector<float> x, gates, conv, rate, bias, norm;
};

class ReferenceOps final : public RecurrentOps {
 public:
  void ShortConv(const ShortConvParams& p) override { reference::ShortConv(p); }
  void GatedDelta(const GatedDeltaParams& p) override { reference::GatedDelta(p); }
  void GatedNorm(const GatedNormParams& p) override { reference::GatedNorm(p); }
};

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 2e-5 * (1 + std::fabs(want[i]))) << i;
}

class RecurrentTest : public IsaTest {};

TEST_P(RecurrentTest, OpsMatchTheReference) {
  Random random(3);
  ThreadPool pool(3);
  const auto ops = MakeCpuRecurrentOps(pool);
  ReferenceOps reference;
  for (const int64_t value_dim : {1, 7, 16, 32, 64, 100, 128, 130}) {
    const Layer layer(random, 23, random.Pick({1, 5, 16, 32}), value_dim);
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
  for (const int64_t value_dim : {5, 32, 64, 129}) {
    constexpr int64_t kRows = 37;
    const Layer layer(random, kRows, random.Pick({3, 32}), value_dim);
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
    EXPECT_TRUE(SameBits(got, want)) << value_dim;
    EXPECT_TRUE(SameBits(layer.Slot(states, from), layer.Slot(whole, 0))) << value_dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RecurrentTest,
                         ::testing::Values(Isa::kReference, Isa::kAvx2, Isa::kAvx512), IsaName);

}  // namespace
}  // namespace switchyard::kernels
