// Ops of recurrent layers on a GPU: against the reference, and with the same bits for any chunks.
#include "kernels/recurrent.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/cuda/device/device_testing.h"
#include "kernels/recurrent_testing.h"

namespace switchyard::kernels {
namespace {

constexpr StateRule kRules[] = {StateRule::kDelta, StateRule::kKeyDelta, StateRule::kMamba2,
                                StateRule::kFixed};

class GpuRecurrentTest : public DeviceTest {
 protected:
  RecurrentLayer RandomLayer(int64_t rows, StateRule rule) {
    const bool aligned = random_.Below(2) == 0;
    return {random_,
            {.rows = rows,
             .key_dim = aligned ? random_.Pick<int64_t>({16, 128, 132, 256})
                                : random_.Pick<int64_t>({1, 5, 32, 130, 256}),
             .value_dim = aligned ? random_.Pick<int64_t>({4, 32, 100, 128})
                                  : random_.Pick<int64_t>({1, 7, 33, 130}),
             .width = random_.Pick<int64_t>({1, 2, 4, 4, 7}),
             .spare = aligned ? 4 : 3,
             .rule = rule}};
  }
  std::vector<float> Run(const RecurrentLayer& layer, std::span<const StateSpan> spans,
                         std::vector<float>& states) {
    return layer.Run(*exact_->recurrent(), spans, states, exact_.get());
  }
};

// Ragged batches: decode rows and prompts, new ones and ones with a state, with and without copies.
TEST_F(GpuRecurrentTest, OpsMatchTheReference) {
  ReferenceRecurrentOps reference;
  for (int round = 0; round < 120; ++round) {
    const StateRule rule = kRules[round / 30];
    std::vector<StateSpan> spans;
    int32_t rows = 0;
    const auto add = [&](int32_t count, int32_t from, int32_t to) {
      spans.push_back({.row_begin = rows, .rows = count, .from = from, .to = to});
      rows += count;
    };
    add(1, 3, 0);
    if (round % 4 > 0) add(1, -1, 1);
    if (round % 2 > 0) add(1 + static_cast<int32_t>(random_.Below(30)), 7, 2);
    const auto longest = static_cast<int32_t>(2 + random_.Below(20));
    add(longest, round % 5 == 0 ? 3 : -1, 4);
    spans.back().copies[0] = {.rows = 1 + static_cast<int32_t>(random_.Below(longest - 1)),
                              .slot = 5};
    if (spans.back().copies[0].rows + 1 < longest)
      spans.back().copies[1] = {.rows = spans.back().copies[0].rows + 1, .slot = 6};
    const RecurrentLayer layer = RandomLayer(rows, rule);
    std::vector<float> want = random_.Normal(8 * layer.slot_floats), got = want;
    const std::vector<float> outputs = layer.Run(reference, spans, want);
    SCOPED_TRACE(::testing::Message()
                 << "rule " << round / 30 << " key_dim " << layer.key_dim << " value_dim "
                 << layer.value_dim << " width " << layer.width);
    ExpectNear(Run(layer, spans, got), outputs, 2e-4);  // the norm enlarges errors of small rows
    ExpectNear(got, want, 5e-5);
    for (const int64_t slot : {3, 7})
      EXPECT_TRUE(SameBits(layer.Slot(got, slot), layer.Slot(want, slot))) << slot;
  }
}

// One chunk of more rows than ShortConv computes one by one.
TEST_F(GpuRecurrentTest, ChunksDoNotChangeABit) {
  constexpr int32_t kRows = 1100;
  for (int round = 0; round < 12; ++round) {
    const RecurrentLayer layer = RandomLayer(kRows, kRules[round % 4]);
    std::vector<float> whole = layer.States(), states = whole, got;
    const StateSpan all[] = {{.rows = kRows, .to = 0, .copies = {{.rows = 40, .slot = 1}}}};
    const std::vector<float> want = Run(layer, all, whole);
    int32_t from = -1, row = 0;
    for (const int32_t rows : {1, 1, 12, 25, 1, kRows - 40}) {
      const int32_t to = from < 0 ? 2 : 5 - from;  // slots 2 and 3 in turn
      const StateSpan span[] = {{.row_begin = row, .rows = rows, .from = from, .to = to}};
      const std::vector<float> part = Run(layer, span, states);
      got.insert(got.end(), part.begin(), part.end());
      from = to;
      row += rows;
      if (row == 40) {
        EXPECT_TRUE(SameBits(layer.Slot(states, to), layer.Slot(whole, 1)));
      }
    }
    EXPECT_TRUE(SameBits(got, want));
    EXPECT_TRUE(SameBits(layer.Slot(states, from), layer.Slot(whole, 0)));
  }
}

TEST_F(GpuRecurrentTest, StatesAfterEachRowAreThoseOfSingleRows) {
  for (const StateRule rule : kRules) {
    const RecurrentLayer layer = RandomLayer(8, rule);
    const StateSpan all[] = {RecurrentLayer::EachRow()};
    std::vector<float> whole = layer.States(), states = whole, got;
    const std::vector<float> want = Run(layer, all, whole);
    for (int32_t row = 0; row < 8; ++row) {
      const StateSpan one[] = {{.row_begin = row, .rows = 1, .from = row - 1, .to = row}};
      const std::vector<float> out = Run(layer, one, states);
      got.insert(got.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(got, want));
    EXPECT_TRUE(SameBits(states, whole));
  }
}

// A decode batch that is padded: rows without slots, and spans without rows.
TEST_F(GpuRecurrentTest, PaddingLeavesNoStateAndChangesNoBit) {
  for (int round = 0; round < 20; ++round) {
    const RecurrentLayer layer = RandomLayer(8, kRules[round % 4]);
    const std::vector<StateSpan> batch = {{.row_begin = 0, .rows = 1, .from = 4, .to = 0},
                                          {.row_begin = 1, .rows = 3, .from = -1, .to = 1},
                                          {.row_begin = 4, .rows = 1, .from = 5, .to = 2}};
    std::vector<StateSpan> padded = batch;
    for (int32_t row = 5; row < 8; ++row) padded.push_back({.row_begin = row, .rows = 1});
    padded.insert(padded.end(), 2, {.row_begin = 8, .rows = 0});
    std::vector<float> want = random_.Normal(8 * layer.slot_floats), got = want;
    const std::vector<float> outputs = Run(layer, batch, want);
    std::vector<float> all = Run(layer, padded, got);
    EXPECT_TRUE(std::ranges::all_of(all, [](float v) { return std::isfinite(v); }));
    all.resize(outputs.size());
    EXPECT_TRUE(SameBits(all, outputs));
    EXPECT_TRUE(SameBits(got, want));
  }
}

TEST_F(GpuRecurrentTest, ACapturedPassReadsTheSpansThatWereUploadedLast) {
  constexpr int32_t kRows = 4;
  uint64_t key = 7;
  for (const StateRule rule : kRules) {
    const RecurrentLayer layer = RandomLayer(kRows, rule);
    RecurrentOps& ops = *exact_->recurrent();
    ArrayCopies copies(exact_.get());
    std::vector<float> want = random_.Normal(8 * layer.slot_floats);
    float* const states = copies.Of(want);
    StateSpan* const spans = copies.Of(std::vector<StateSpan>(kRows));
    const RecurrentLayer::Arrays arrays = layer.Place(copies, 0, kRows);
    ++key;
    for (int32_t step = 0; step < 6; ++step) {
      std::vector<StateSpan> now;
      for (int32_t row = 0; row < kRows; ++row)
        now.push_back({.row_begin = row,
                       .rows = 1,
                       .from = step == 0 ? -1 : 2 * row + step % 2,
                       .to = 2 * row + (step + 1) % 2});
      if (step % 2 == 0) now.back().from = now.back().to = -1;  // a padding row
      exact_->CopyIn(spans, now.data(), now.size() * sizeof(StateSpan));
      exact_->Run(key, [&] { layer.Start(ops, arrays, spans, kRows, kRows, states); });
      const std::vector<float> outputs = Run(layer, now, want);
      std::vector<float> got(outputs.size()), got_states(want.size());
      copies.Read(arrays.out, got);
      copies.Read(states, got_states);
      EXPECT_TRUE(SameBits(got, outputs)) << step;
      EXPECT_TRUE(SameBits(got_states, want)) << step;
    }
  }
}

// Tests of rows in chunks (StateSpan::chunked). Sizes of heads that are not whole tiles are padded.
class GpuChunkedRecurrentTest : public GpuRecurrentTest {
 protected:
  void SetUp() override {
    GpuRecurrentTest::SetUp();
    if (exact_ && !exact_->recurrent()->ChunksRows(kMaxChunkKeyDim))
      GTEST_SKIP() << "needs a Hopper GPU";
  }
  RecurrentLayer ChunkedLayer(int64_t rows) {
    const bool aligned = random_.Below(2) == 0;
    RecurrentLayer layer(random_, {.rows = rows,
                                   .key_dim = aligned ? random_.Pick<int64_t>({16, 64, 128, 128})
                                                      : random_.Pick<int64_t>({1, 5, 99, 128}),
                                   .value_dim = aligned ? random_.Pick<int64_t>({4, 32, 100, 128})
                                                        : random_.Pick<int64_t>({1, 7, 33, 130}),
                                   .width = 4,
                                   .spare = aligned ? 4 : 3});
    layer.chunked = true;
    return layer;
  }
};

constexpr int32_t kChunk = kDeltaChunk;

// Batches of decode rows, of prompts with and without whole chunks, and of later parts of prompts,
// with copies of states between chunks and in the rows after them.
TEST_F(GpuChunkedRecurrentTest, OpsMatchTheReference) {
  ReferenceRecurrentOps reference;
  for (int round = 0; round < 24; ++round) {
    std::vector<StateSpan> spans;
    int32_t rows = 0;
    const auto add = [&](int32_t chunks, int32_t more, int32_t from, int32_t to) {
      spans.push_back({.row_begin = rows,
                       .rows = chunks * kChunk + more,
                       .from = from,
                       .to = to,
                       .chunked = chunks * kChunk});
      rows += spans.back().rows;
    };
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random_.Below(n)); };
    if (round % 3 > 0) add(0, 1, 3, 0);
    if (round % 4 == 3) add(0, 1 + below(80), -1, 1);
    add(1 + below(4), below(kChunk), round % 2 == 0 ? -1 : 7, 2);
    if (spans.back().chunked > kChunk) spans.back().copies[0] = {.rows = kChunk, .slot = 5};
    add(1, 0, 3, 4);
    if (round % 3 == 2) {
      add(2, 9, -1, 6);
      spans.back().copies[0] = {.rows = 2 * kChunk + 4, .slot = 1};
      if (round % 4 == 3) spans.back().copies[0] = {};
    }
    const RecurrentLayer layer = ChunkedLayer(rows);
    std::vector<float> want = random_.Normal(8 * layer.slot_floats), got = want;
    const std::vector<float> outputs = layer.Run(reference, spans, want);
    SCOPED_TRACE(::testing::Message() << "key_dim " << layer.key_dim << " value_dim "
                                      << layer.value_dim << " round " << round);
    // Each product of two split numbers has an error of 2^-16. Inputs rounded to bfloat16 change
    // outputs ten times as much.
    ExpectNear(Run(layer, spans, got), outputs, 4e-4);
    ExpectNear(got, want, 5e-5);
    for (const int64_t slot : {3, 7})
      EXPECT_TRUE(SameBits(layer.Slot(got, slot), layer.Slot(want, slot))) << slot;
  }
}

// Passes end at other chunks, and have other sequences.
TEST_F(GpuChunkedRecurrentTest, CutsBetweenChunksDoNotChangeABit) {
  constexpr int32_t kRows = 9 * kChunk + 20;
  for (int round = 0; round < 4; ++round) {
    const RecurrentLayer layer = ChunkedLayer(kRows);
    std::vector<float> whole = layer.States(), states = whole, got;
    const StateSpan all[] = {{.rows = kRows,
                              .to = 0,
                              .copies = {{.rows = 4 * kChunk, .slot = 1}},
                              .chunked = 9 * kChunk}};
    const std::vector<float> want = Run(layer, all, whole);
    int32_t from = -1, row = 0;
    for (const int32_t rows : {kChunk, 3 * kChunk, 5 * kChunk + 7, 12, 1}) {
      const int32_t to = from < 0 ? 2 : 5 - from;  // slots 2 and 3 in turn
      const StateSpan span[] = {{.row_begin = row,
                                 .rows = rows,
                                 .from = from,
                                 .to = to,
                                 .chunked = std::min(rows / kChunk, 5) * kChunk}};
      const std::vector<float> part = Run(layer, span, states);
      got.insert(got.end(), part.begin(), part.end());
      from = to;
      row += rows;
      if (row == 4 * kChunk) {
        EXPECT_TRUE(SameBits(layer.Slot(states, to), layer.Slot(whole, 1)));
      }
    }
    EXPECT_TRUE(SameBits(got, want));
    EXPECT_TRUE(SameBits(layer.Slot(states, from), layer.Slot(whole, 0)));

    // The last five chunks and the rest, after two decode rows and before another prompt.
    std::vector<float> together = layer.States();
    std::ranges::copy(layer.Slot(whole, 1), together.begin() + layer.slot_floats);
    const StateSpan batch[] = {
        {.row_begin = 4 * kChunk - 2, .rows = 1, .from = 1, .to = 2},
        {.row_begin = 4 * kChunk - 1, .rows = 1, .from = 1, .to = 3},
        {.row_begin = 4 * kChunk, .rows = 3 * kChunk, .from = 1, .to = 4, .chunked = 3 * kChunk},
        {.row_begin = 7 * kChunk, .rows = 2 * kChunk + 20, .to = 5, .chunked = 2 * kChunk}};
    const std::vector<float> outputs = Run(layer, batch, together);
    const int64_t width = static_cast<int64_t>(want.size()) / kRows;
    const auto rows_of = [&](const std::vector<float>& from_rows, int64_t first) {
      return std::vector<float>(from_rows.begin() + first * width,
                                from_rows.begin() + (first + 3 * kChunk) * width);
    };
    EXPECT_TRUE(SameBits(rows_of(outputs, 2), rows_of(want, 4 * kChunk)));
  }
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(double{a[i]} - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN counts
  }
  return largest;
}

// Decays that vanish or are almost 1, steps of almost 1, and similar keys. Then roundings add up in
// the directions that the keys hardly have. The error is small compared with the effect of inputs
// that are rounded to bfloat16, as those of models are.
TEST_F(GpuChunkedRecurrentTest, ErrorsOfExtremeGatesAreSmallerThanThoseOfInputs) {
  constexpr int32_t kRows = 12 * kChunk;
  ReferenceRecurrentOps reference;
  for (const float rate : {-1e-5f, -0.05f, -3.0f, -500.0f}) {
    RecurrentLayer layer = ChunkedLayer(kRows);
    SCOPED_TRACE(rate);
    std::ranges::fill(layer.rate, rate);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t head = 0; head < layer.key_heads; ++head) {
        float* gates = layer.gates.data() + (row * layer.key_heads + head) * 2 * layer.group;
        std::fill_n(gates, layer.group, 4.0f);
        float* x = layer.x.data() + (row * layer.key_heads + head) * layer.head_floats;
        for (int64_t i = 0; i < layer.key_dim; ++i) x[layer.key_dim + i] = 1.0f + 0.1f * x[i];
      }
    RecurrentLayer rounded = layer;
    for (float& x : rounded.x) x = ToFloat(ToBF16(x));
    const StateSpan span[] = {{.rows = kRows, .to = 0, .chunked = kRows}};
    std::vector<float> want = layer.States(), got = want, other = want;
    const std::vector<float> outputs = layer.Run(reference, span, want);
    const double effect = LargestDifference(rounded.Run(reference, span, other), outputs);
    const double of_states = LargestDifference(layer.Slot(other, 0), layer.Slot(want, 0));
    EXPECT_LE(LargestDifference(Run(layer, span, got), outputs), effect / 8);
    EXPECT_LE(LargestDifference(layer.Slot(got, 0), layer.Slot(want, 0)), of_states / 8);
  }
}

// Without GatedDeltaParams::chunked, chunked rows are computed one by one.
TEST_F(GpuChunkedRecurrentTest, TheFormRowByRowIgnoresChunks) {
  RecurrentLayer layer = ChunkedLayer(2 * kChunk + 3);
  layer.chunked = false;
  StateSpan span = {.rows = 2 * kChunk + 3, .to = 0};
  std::vector<float> want = layer.States(), got = want;
  const std::vector<float> outputs = Run(layer, {&span, 1}, want);
  span.chunked = 2 * kChunk;
  EXPECT_TRUE(SameBits(Run(layer, {&span, 1}, got), outputs));
  EXPECT_TRUE(SameBits(got, want));
}

}  // namespace
}  // namespace switchyard::kernels
