#include "train/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/parallel.h"
#include "train/cuda/testing.h"
#include "train/layers/attention.h"

namespace switchyard::train::gpu {
namespace {

struct Case {
  bool bf16;
  int64_t heads, kv_heads, qk_dim, v_dim;
  int32_t window;
  std::vector<int32_t> lengths;
};

// Values of one head are followed by `gap` elements that belong to something else.
struct Tensor {
  Tensor(bool bf16, int64_t rows, int64_t heads_of_tensor, int64_t head_dim, int64_t gap_elements,
         std::mt19937& random)
      : heads(heads_of_tensor),
        dim(head_dim),
        head(dim + gap_elements),
        array(TestArray::Random(bf16, rows * heads * head, random)) {}
  MutableHeadArray view() const { return {array, heads * head, head}; }
  train::HeadRows<double> rows_of(std::vector<double>& values) const {
    return {values.data(), heads * head, head};
  }
  train::HeadRows<const double> host() const { return {array.values.data(), heads * head, head}; }

  int64_t heads, dim, head;
  TestArray array;
};

// All arrays of a forward and a backward pass.
struct Tensors {
  // Results in out, log_sums, dq, dk and dv. The GPU may still work on them.
  void Run(const AttentionShape& shape) const {
    Attention(shape, q.view(), k.view(), v.view(), out.view(), log_sums.floats(), nullptr);
    AttentionGradient({.shape = shape,
                       .q = q.view(),
                       .k = k.view(),
                       .v = v.view(),
                       .out = out.view(),
                       .dout = dout.view(),
                       .log_sums = log_sums.floats(),
                       .along = along.floats(),
                       .dq = dq.view(),
                       .dk = dk.view(),
                       .dv = dv.view()},
                      nullptr);
  }
  // The results of the first `rows` rows.
  std::vector<std::vector<double>> Read(int64_t rows) const {
    std::vector<std::vector<double>> all;
    for (const Tensor* t : {&out, &dq, &dk, &dv}) {
      all.push_back(t->array.Read());
      all.back().resize(static_cast<size_t>(rows * t->heads * t->head));
    }
    return all;
  }

  Tensor q, k, v, out, dout, dq, dk, dv;
  TestArray log_sums, along;
};

class TrainAttention : public TrainCudaTest {
 protected:
  void Compare(const Case& c) {
    std::vector<int32_t> begins = {0};
    int32_t longest = 0;
    for (const int32_t length : c.lengths) {
      begins.push_back(begins.back() + length);
      longest = std::max(longest, length);
    }
    const int64_t rows = begins.back();
    const Tensors t = {.q{c.bf16, rows, c.heads, c.qk_dim, 0, random_},
                       .k{c.bf16, rows, c.kv_heads, c.qk_dim, 8, random_},
                       .v{c.bf16, rows, c.kv_heads, c.v_dim, 16, random_},
                       .out{c.bf16, rows, c.heads, c.v_dim, 0, random_},
                       .dout{c.bf16, rows, c.heads, c.v_dim, 8, random_},
                       .dq{c.bf16, rows, c.heads, c.qk_dim, 0, random_},
                       .dk{c.bf16, rows, c.kv_heads, c.qk_dim, 8, random_},
                       .dv{c.bf16, rows, c.kv_heads, c.v_dim, 16, random_},
                       .log_sums = TestArray::Filled(false, c.heads * rows, 77),
                       .along = TestArray::Filled(false, c.heads * rows, 77)};
    const cuda::DeviceMemory device_begins = Upload(begins);
    const AttentionShape shape = {.heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .qk_dim = c.qk_dim,
                                  .v_dim = c.v_dim,
                                  .scale = 0.3f,
                                  .window = c.window,
                                  .rows = rows,
                                  .sequences = static_cast<int>(c.lengths.size()),
                                  .begins = device_begins.as<int32_t>(),
                                  .longest = longest,
                                  .tiles = tiles_};
    t.Run(shape);

    const train::AttentionShape<double> cpu = {.heads = c.heads,
                                               .kv_heads = c.kv_heads,
                                               .qk_dim = c.qk_dim,
                                               .v_dim = c.v_dim,
                                               .scale = double{0.3f},
                                               .window = c.window};
    const train::RowLayout layout = train::RowLayout::Of(begins);
    std::vector<double> want = t.out.array.values, want_logs(c.heads * rows);
    train::Attention<double>(cpu, layout, t.q.host(), t.k.host(), t.v.host(), t.out.rows_of(want),
                             want_logs.data(), pool_);
    // Rounded probabilities, gradients of scores and outputs. The CPU's errors with bfloat16
    // products have root mean squares of 0.002, and some are 40 times as large.
    const double tolerance = c.bf16 ? 4e-3 : 1e-6;
    const std::string sizes = " with head dimensions " + std::to_string(c.qk_dim) + " and " +
                              std::to_string(c.v_dim) + ", window " + std::to_string(c.window) +
                              (c.bf16 ? ", bfloat16" : ", float32");
    ExpectTypicallyClose(t.out.array, want, tolerance, "output" + sizes);
    ExpectClose(t.log_sums, want_logs, 2e-5, "sums" + sizes);

    std::vector<double> want_dq = t.dq.array.values, want_dk = t.dk.array.values,
                        want_dv = t.dv.array.values;
    train::AttentionGradient<double>(
        cpu, layout, t.q.host(), t.k.host(), t.v.host(),
        train::HeadRows<const double>{want.data(), c.heads * t.out.head, t.out.head},
        want_logs.data(), t.dout.host(), t.dq.rows_of(want_dq), t.dk.rows_of(want_dk),
        t.dv.rows_of(want_dv), pool_);
    ExpectTypicallyClose(t.dq.array, want_dq, tolerance, "gradient of queries" + sizes);
    ExpectTypicallyClose(t.dk.array, want_dk, tolerance, "gradient of keys" + sizes);
    ExpectTypicallyClose(t.dv.array, want_dv, tolerance, "gradient of values" + sizes);
  }

  ThreadPool pool_{2};
  AttentionTiles tiles_ = AttentionTiles::kHopper;
};

TEST_F(TrainAttention, TilesOfGroupedHeads) {
  for (const int32_t window : {0, 50})
    for (const int64_t dim : {64, 128})
      Compare({true, 4, 2, dim, dim, window, {1, 70, 0, 64, 129, 200}});
  Compare({true, 2, 2, 128, 128, 3, {90}});
  Compare({true, 6, 1, 64, 64, 0, {130}});
}

TEST_F(TrainAttention, TilesOfLatentHeads) {
  Compare({true, 3, 3, 192, 128, 0, {65, 3, 140}});
  Compare({true, 2, 2, 192, 128, 40, {128}});
}

// More tiles than a block of Hopper has buffers, and sequences that end within or at the end of a
// tile.
TEST_F(TrainAttention, LongSequences) {
  Compare({true, 2, 1, 128, 128, 0, {129, 700, 1, 256, 127}});
  Compare({true, 1, 1, 128, 128, 300, {650}});
  Compare({true, 2, 2, 64, 64, 0, {513, 40, 384}});
  Compare({true, 1, 1, 64, 64, 130, {500, 128}});
  Compare({true, 1, 1, 192, 128, 0, {65, 450, 192}});
  Compare({true, 1, 1, 192, 128, 70, {290}});
  // Most sequences are much shorter than the longest one.
  Compare({true, 3, 3, 64, 64, 0, {0, 3, 1, 600, 0, 20, 128, 5, 129, 2, 0}});
}

// The kernels of GPUs without wgmma or TMA; on GPUs without them, the same as the tests above.
TEST_F(TrainAttention, OlderTiles) {
  for (const AttentionTiles tiles : {AttentionTiles::kOneWarpgroup, AttentionTiles::kMmaSync}) {
    tiles_ = tiles;
    Compare({true, 4, 2, 64, 64, 50, {1, 70, 0, 64, 129}});
    Compare({true, 2, 1, 128, 128, 0, {65, 130}});
    Compare({true, 1, 1, 192, 128, 0, {65, 3, 70}});
  }
}

// A tile may contain rows of two sequences. The second sequence has values that are not finite.
TEST_F(TrainAttention, SequencesDoNotAffectEachOther) {
  for (const auto& [qk_dim, v_dim] :
       {std::pair{64, 64}, std::pair{128, 128}, std::pair{192, 128}}) {
    const int64_t rows = 200, first = 150;
    const cuda::DeviceMemory begins = Upload(std::vector<int32_t>{0, first, rows});
    std::vector<std::vector<double>> results[2];
    for (const bool finite : {true, false}) {
      random_.seed(5);
      const auto tensor = [&](int64_t dim, bool input) {
        Tensor t(true, rows, 1, dim, 0, random_);
        if (input && !finite) {
          std::vector<double> values = t.array.values;
          std::fill(values.begin() + first * dim, values.end(), NAN);
          t.array = TestArray(true, std::move(values));
        }
        return t;
      };
      const Tensors t = {.q = tensor(qk_dim, true),
                         .k = tensor(qk_dim, true),
                         .v = tensor(v_dim, true),
                         .out = tensor(v_dim, false),
                         .dout = tensor(v_dim, true),
                         .dq = tensor(qk_dim, false),
                         .dk = tensor(qk_dim, false),
                         .dv = tensor(v_dim, false),
                         .log_sums = TestArray::Filled(false, rows, 0),
                         .along = TestArray::Filled(false, rows, 0)};
      const AttentionShape shape = {.heads = 1,
                                    .kv_heads = 1,
                                    .qk_dim = qk_dim,
                                    .v_dim = v_dim,
                                    .scale = 0.1f,
                                    .rows = rows,
                                    .sequences = 2,
                                    .begins = begins.as<int32_t>(),
                                    .longest = first};
      t.Run(shape);
      results[finite] = t.Read(first);
    }
    EXPECT_EQ(results[0], results[1]) << "head dimension " << qk_dim;
  }
}

TEST_F(TrainAttention, OtherFormatsAndDimensions) {
  Compare({false, 4, 2, 64, 64, 0, {40, 1, 25}});
  Compare({false, 2, 1, 24, 16, 7, {33}});
  Compare({true, 4, 4, 96, 40, 0, {30, 0, 5}});
  Compare({false, 1, 1, 256, 256, 0, {20}});
}

TEST_F(TrainAttention, EqualCallsGiveEqualBits) {
  const int64_t rows = 700, heads = 4, dim = 128;
  const Tensors t = {.q{true, rows, heads, dim, 0, random_},
                     .k{true, rows, 1, dim, 0, random_},
                     .v{true, rows, 1, dim, 0, random_},
                     .out{true, rows, heads, dim, 0, random_},
                     .dout{true, rows, heads, dim, 0, random_},
                     .dq{true, rows, heads, dim, 0, random_},
                     .dk{true, rows, 1, dim, 0, random_},
                     .dv{true, rows, 1, dim, 0, random_},
                     .log_sums = TestArray::Filled(false, heads * rows, 0),
                     .along = TestArray::Filled(false, heads * rows, 0)};
  const cuda::DeviceMemory begins = Upload(std::vector<int32_t>{0, 570, 700});
  const AttentionShape shape = {.heads = heads,
                                .kv_heads = 1,
                                .qk_dim = dim,
                                .v_dim = dim,
                                .scale = 0.1f,
                                .rows = rows,
                                .sequences = 2,
                                .begins = begins.as<int32_t>(),
                                .longest = 570};
  std::vector<std::vector<double>> results[2];
  for (auto& result : results) {
    t.Run(shape);
    result = t.Read(rows);
  }
  EXPECT_EQ(results[0], results[1]);
}

// A rank without tokens.
TEST_F(TrainAttention, NoRowsAreAllowed) {
  const AttentionShape shape = {.heads = 2, .kv_heads = 1, .qk_dim = 64, .v_dim = 64};
  Attention(shape, {}, {}, {}, {}, nullptr, nullptr);
  AttentionGradient({.shape = shape}, nullptr);
  cuda::Check(cudaDeviceSynchronize(), "attention without rows");
}

TEST_F(TrainAttention, WrongSizesAreRefused) {
  const AttentionShape shape = {.heads = 3, .kv_heads = 2, .qk_dim = 64, .v_dim = 64};
  EXPECT_THROW(Attention(shape, {}, {}, {}, {}, nullptr, nullptr), Error);
  const AttentionShape wide = {.heads = 2, .kv_heads = 2, .qk_dim = 320, .v_dim = 64};
  EXPECT_THROW(Attention(wide, {}, {}, {}, {}, nullptr, nullptr), Error);
}

}  // namespace
}  // namespace switchyard::train::gpu
