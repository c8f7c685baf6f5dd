#include <algorithm>

#include "kernels/cache_rows.h"
#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class AttentionTest : public IsaTest {};

// A cache of `slots` slots of `heads` rows of `width` elements of some type, filled from float32.
struct Cache {
  std::vector<char> bytes;
  Cache(DType dtype, const std::vector<float>& values, int64_t slots, int64_t heads, int64_t width)
      : bytes(slots * heads * CacheRowBytes(dtype, width)) {
    std::vector<int32_t> ids(slots * heads);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    reference::StoreKv({.x = values.data(),
                        .ldx = width,
                        .m = slots * heads,
                        .n = width,
                        .slots = ids.data(),
                        .cache = bytes.data(),
                        .dtype = dtype});
  }
};

struct Shape {
  int64_t heads, kv_heads, head_dim;
  int32_t page_size;
  DType dtype;
  int32_t window;
  bool sinks;
};

const Shape kShapes[] = {
    {4, 4, 16, 1, DType::kF32, 0, false},     {4, 2, 64, 16, DType::kBF16, 0, false},
    {8, 1, 40, 4, DType::kF16, 0, true},      {6, 2, 8, 1, DType::kF32, 20, true},
    {2, 2, 128, 32, DType::kBF16, 70, false}, {5, 1, 20, 8, DType::kF32, 1, false},
    {4, 2, 64, 16, DType::kF8E4M3, 0, false}, {8, 1, 40, 4, DType::kI8, 0, true},
    {3, 3, 20, 8, DType::kF8E4M3, 50, true},  {6, 2, 128, 1, DType::kI8, 70, false},
};

// Two sequences in one batch: a whole prefill of 150 and the last 3 rows of 200 keys.
struct Batch {
  Shape shape;
  std::vector<int32_t> pages;
  std::vector<float> q, k_values, v_values, sinks, out;
  std::vector<char> k, v;
  std::vector<SequenceSpan> sequences;
  static constexpr int64_t kRows = 153;

  Batch(Random& random, const Shape& s) : shape(s) {
    const int32_t pages_each = 256 / s.page_size;
    const int64_t slots = 512, width = s.kv_heads * s.head_dim;
    pages = random.Shuffled(2 * pages_each);
    q = random.Normal(kRows * s.heads * s.head_dim);
    k_values = random.Normal(slots * width);
    v_values = random.Normal(slots * width);
    sinks = random.Normal(s.heads);
    out.resize(q.size());
    k = Cache(s.dtype, k_values, slots, s.kv_heads, s.head_dim).bytes;
    v = Cache(s.dtype, v_values, slots, s.kv_heads, s.head_dim).bytes;
    sequences = {{.row_begin = 0, .rows = 150, .kv_len = 150, .pages = pages.data()},
                 {.row_begin = 150, .rows = 3, .kv_len = 200, .pages = pages.data() + pages_each}};
  }
  int64_t width() const { return shape.heads * shape.head_dim; }
  AttentionParams Params() {
    return {.q = q.data(),
            .ldq = width(),
            .k_cache = k.data(),
            .v_cache = v.data(),
            .kv_dtype = shape.dtype,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .page_size = shape.page_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .window = shape.window,
            .sinks = shape.sinks ? sinks.data() : nullptr,
            .sequences = sequences,
            .out = out.data(),
            .ldo = width()};
  }
};

TEST_P(AttentionTest, MatchesReference) {
  Random random(1);
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    Batch batch(random, shape);
    AttentionParams p = batch.Params();
    Attention(p, pool);
    std::vector<float> expected(batch.out.size());
    p.out = expected.data();
    reference::Attention(p);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(batch.out[i], expected[i], 100 * kEpsilon) << shape.head_dim << " " << i;
    }
  }
}

TEST_P(AttentionTest, ChunksDecodeStepsAndThreadsGiveTheSameBits) {
  Random random(2);
  ThreadPool one(1), three(3);
  for (const Shape& shape : kShapes) {
    Batch batch(random, shape);
    AttentionParams p = batch.Params();
    Attention(p, one);
    std::vector<float> again(batch.out.size());
    p.out = again.data();
    Attention(p, three);
    EXPECT_TRUE(SameBits(batch.out, again)) << "threads";

    // The first sequence in pieces: a chunk that ends off the key blocks, one that starts there,
    // then single rows.
    std::vector<int32_t> ends = {37, 101};
    for (int32_t end = 102; end <= 150; ++end) ends.push_back(end);
    int32_t begin = 0;
    for (const int32_t end : ends) {
      const SequenceSpan chunk = {
          .row_begin = begin, .rows = end - begin, .kv_len = end, .pages = batch.pages.data()};
      p.sequences = {&chunk, 1};
      std::fill(again.begin(), again.end(), 0.0f);
      Attention(p, three);
      EXPECT_TRUE(SameBits(again.data() + begin * batch.width(),
                           batch.out.data() + begin * batch.width(), (end - begin) * batch.width()))
          << "head_dim " << shape.head_dim << " rows " << begin << " to " << end;
      begin = end;
    }
  }
}

TEST_P(AttentionTest, PlacesOfPagesDoNotMatter) {
  Random random(3);
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    Batch batch(random, shape);
    AttentionParams p = batch.Params();
    Attention(p, pool);
    const std::vector<float> before = batch.out;
    // Lay the pages out in order.
    const int64_t page_bytes =
        shape.page_size * shape.kv_heads * CacheRowBytes(shape.dtype, shape.head_dim);
    for (std::vector<char>* cache : {&batch.k, &batch.v}) {
      std::vector<char> ordered(cache->size());
      for (size_t i = 0; i < batch.pages.size(); ++i) {
        std::copy_n(cache->begin() + batch.pages[i] * page_bytes, page_bytes,
                    ordered.begin() + static_cast<int64_t>(i) * page_bytes);
      }
      *cache = ordered;
    }
    for (size_t i = 0; i < batch.pages.size(); ++i) batch.pages[i] = static_cast<int32_t>(i);
    p = batch.Params();
    Attention(p, pool);
    EXPECT_TRUE(SameBits(before, batch.out)) << shape.head_dim;
  }
}

TEST_P(AttentionTest, LaterAndExpiredKeysAreNeverRead) {
  Random random(4);
  ThreadPool pool(1);
  const Shape shape = {2, 1, 16, 1, DType::kF32, 20, false};
  Batch batch(random, shape);
  AttentionParams p = batch.Params();
  Attention(p, pool);
  // Rows 100 to 109 see keys 81 to 109. Values elsewhere may be anything, even NaN.
  std::vector<float> v(batch.v_values.size(), std::nanf("")), k = v;
  for (int32_t j = 81; j < 110; ++j) {
    std::copy_n(batch.v_values.begin() + batch.pages[j] * 16, 16, v.begin() + batch.pages[j] * 16);
    std::copy_n(batch.k_values.begin() + batch.pages[j] * 16, 16, k.begin() + batch.pages[j] * 16);
  }
  std::vector<float> again(batch.out.size());
  const SequenceSpan chunk = {
      .row_begin = 100, .rows = 10, .kv_len = 110, .pages = batch.pages.data()};
  p.k_cache = k.data();
  p.v_cache = v.data();
  p.sequences = {&chunk, 1};
  p.out = again.data();
  Attention(p, pool);
  EXPECT_TRUE(SameBits(again.data() + 100 * batch.width(), batch.out.data() + 100 * batch.width(),
                       10 * batch.width()));
}

TEST_P(AttentionTest, NoSequencesAndNoRowsDoNothing) {
  ThreadPool pool(2);
  Attention({.heads = 2, .kv_heads = 1, .head_dim = 8}, pool);
  const SequenceSpan empty = {};
  Attention({.heads = 2, .kv_heads = 1, .head_dim = 8, .sequences = {&empty, 1}}, pool);
  LatentAttention({.heads = 2, .lora = 8, .rope = 8, .sequences = {&empty, 1}}, pool);
}

TEST_P(AttentionTest, LatentMatchesReferenceInAnyChunks) {
  Random random(5);
  ThreadPool one(1), three(3);
  struct Latent {
    int64_t heads, lora, rope;
    DType dtype;
  };
  for (const auto& [heads, lora, rope, dtype] :
       {Latent{3, 32, 8, DType::kF32}, Latent{70, 40, 16, DType::kBF16},
        Latent{16, 128, 64, DType::kF16}, Latent{5, 72, 16, DType::kF8E4M3},
        Latent{20, 100, 12, DType::kI8}}) {
    constexpr int32_t kKeys = 130;
    const int64_t width = lora + rope;
    const std::vector<int32_t> pages = random.Shuffled(kKeys);
    const Cache cache(dtype, random.Normal(kKeys * width), kKeys, /*heads=*/1, width);
    const std::vector<float> q = random.Normal(kKeys * heads * width);
    std::vector<float> out(kKeys * heads * lora), expected(out.size()), again(out.size());
    SequenceSpan span = {.rows = kKeys, .kv_len = kKeys, .pages = pages.data()};
    LatentAttentionParams p = {.q = q.data(),
                               .ldq = heads * width,
                               .cache = cache.bytes.data(),
                               .kv_dtype = dtype,
                               .heads = heads,
                               .lora = lora,
                               .rope = rope,
                               .scale = 0.1f,
                               .sequences = {&span, 1},
                               .out = out.data(),
                               .ldo = heads * lora};
    LatentAttention(p, one);
    p.out = expected.data();
    reference::LatentAttention(p);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 100 * kEpsilon) << i;
    for (const auto& [begin, end] : {std::pair{0, 65}, std::pair{65, 129}, std::pair{129, 130}}) {
      span = {.row_begin = begin, .rows = end - begin, .kv_len = end, .pages = pages.data()};
      p.out = again.data();
      LatentAttention(p, three);
    }
    EXPECT_TRUE(SameBits(out, again)) << heads;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
