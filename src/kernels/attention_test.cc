#include <algorithm>

#include "kernels/cache_rows.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class AttentionTest : public IsaTest {};

// A cache with `slots` slots, filled from float32. A slot has `heads` rows of `width` elements of a
// cache type. `scales`: of e4m3 codes [heads]; null: 1.
struct Cache {
  std::vector<char> bytes;
  Cache(DType dtype, const std::vector<float>& values, int64_t slots, int64_t heads, int64_t width,
        const float* scales = nullptr)
      : bytes(slots * heads * CacheRowBytes(dtype, width)) {
    const int64_t rows_each = scales != nullptr ? 1 : heads;
    std::vector<int32_t> ids(slots * rows_each);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    const int64_t n = heads * width / rows_each;
    reference::StoreKv({.x = values.data(),
                        .ldx = n,
                        .m = slots * rows_each,
                        .n = n,
                        .slots = ids.data(),
                        .cache = bytes.data(),
                        .dtype = dtype,
                        .scales = scales,
                        .heads = heads});
  }
};

struct Shape {
  int64_t heads, kv_heads, head_dim;
  int32_t page_size;
  DType dtype;
  int32_t window;
  bool sinks;
  bool rounded = false;  // bfloat16_rows
  int32_t chunk = 0;
  int64_t v_dim = 0;  // 0: head_dim
  float value_scale = 1.0f;
  bool scales = false;  // of e4m3 codes

  int64_t ValueWidth() const { return v_dim > 0 ? v_dim : head_dim; }
  // Tolerance of outputs, which are means of values of about 1. Rounded exponentials have 8 bits.
  float Tolerance() const { return rounded ? 0.01f : 100 * kEpsilon; }
  // Without arrays.
  AttentionParams Params() const {
    return {.ldq = heads * head_dim,
            .kv_dtype = dtype,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .v_dim = v_dim,
            .value_scale = value_scale,
            .page_size = page_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
            .window = window,
            .chunk = chunk,
            .bfloat16_rows = rounded,
            .ldo = heads * ValueWidth()};
  }
};

// Queries that are already rounded to bfloat16.
std::vector<float> Rounded(std::vector<float> q, bool rounded = true) {
  if (rounded) {
    for (float& x : q) x = ToFloat(ToBF16(x));
  }
  return q;
}

const Shape kShapes[] = {
    {4, 4, 16, 1, DType::kF32, 0, false},
    {4, 2, 64, 16, DType::kBF16, 0, false},
    {8, 1, 40, 4, DType::kF16, 0, true},
    {6, 2, 8, 1, DType::kF32, 20, true},
    {2, 2, 128, 32, DType::kBF16, 70, false},
    {5, 1, 20, 8, DType::kF32, 1, false},
    {4, 2, 64, 16, DType::kF8E4M3, 0, false},
    {8, 1, 40, 4, DType::kI8, 0, true},
    {3, 3, 20, 8, DType::kF8E4M3, 50, true},
    {6, 2, 128, 1, DType::kI8, 70, false},
    {4, 2, 64, 16, DType::kBF16, 0, false, true},
    {8, 1, 40, 4, DType::kBF16, 33, true, true},
    {2, 2, 128, 32, DType::kBF16, 70, false, true},
    {6, 2, 18, 1, DType::kBF16, 0, true, true},
    {9, 1, 96, 8, DType::kBF16, 1, false, true},
    {3, 1, 15, 8, DType::kBF16, 0, false, true},
    {4, 2, 16, 1, DType::kF32, 0, true, false, 1},
    {5, 1, 20, 8, DType::kF32, 0, false, false, 7},
    {2, 2, 128, 32, DType::kBF16, 0, false, false, 64},
    {8, 1, 40, 4, DType::kBF16, 0, true, true, 65},
    {4, 2, 64, 16, DType::kBF16, 0, false, true, 9},
    {3, 3, 20, 8, DType::kI8, 0, false, false, 1000},
    {8, 2, 48, 16, DType::kF32, 20, true, false, 0, 32, 0.7f},
    {4, 2, 24, 4, DType::kBF16, 0, true, true, 0, 41, 1.5f},
    {6, 3, 12, 1, DType::kI8, 33, false, false, 0, 7, -0.3f},
    {6, 3, 24, 4, DType::kF8E4M3, 0, true, false, 0, 40, 0.7f, true},
    {4, 2, 64, 16, DType::kF8E4M3, 30, false, false, 0, 0, 1.0f, true},
};

// Two sequences in one batch: a whole prefill of 150 rows, and the last 3 rows of a sequence of 200
// keys.
struct Batch {
  Shape shape;
  std::vector<int32_t> pages;
  std::vector<float> q, k_values, v_values, sinks, out, k_scales, v_scales;
  std::vector<char> k, v;
  std::vector<SequenceSpan> sequences;
  static constexpr int64_t kRows = 153;

  Batch(Random& random, const Shape& s) : shape(s) {
    const int32_t pages_each = 256 / s.page_size;
    const int64_t slots = 512;
    pages = random.Shuffled(2 * pages_each);
    q = Rounded(random.Normal(kRows * s.heads * s.head_dim), s.rounded);
    k_values = random.Normal(slots * s.kv_heads * s.head_dim);
    v_values = random.Normal(slots * s.kv_heads * s.ValueWidth());
    sinks = random.Normal(s.heads);
    out.resize(kRows * width());
    for (int64_t h = 0; s.scales && h < s.kv_heads; ++h) {
      k_scales.push_back(random.Pick({0.3f, 0.9f, 2.1f}));
      v_scales.push_back(random.Pick({0.01f, 0.5f, 1.7f}));
    }
    k = Cache(s.dtype, k_values, slots, s.kv_heads, s.head_dim, Scales(k_scales)).bytes;
    v = Cache(s.dtype, v_values, slots, s.kv_heads, s.ValueWidth(), Scales(v_scales)).bytes;
    sequences = {{.row_begin = 0, .rows = 150, .kv_len = 150, .pages = pages.data()},
                 {.row_begin = 150, .rows = 3, .kv_len = 200, .pages = pages.data() + pages_each}};
  }
  int64_t width() const { return shape.heads * shape.ValueWidth(); }  // of an output row
  const float* Scales(const std::vector<float>& of) const {
    return shape.scales ? of.data() : nullptr;
  }
  AttentionParams Params() {
    AttentionParams p = shape.Params();
    p.q = q.data();
    p.k_cache = k.data();
    p.v_cache = v.data();
    p.k_scales = Scales(k_scales);
    p.v_scales = Scales(v_scales);
    p.sinks = shape.sinks ? sinks.data() : nullptr;
    p.sequences = sequences;
    p.out = out.data();
    return p;
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
      ASSERT_NEAR(batch.out[i], expected[i], shape.Tolerance()) << shape.head_dim << " " << i;
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

    // Computes the first sequence in chunks. The first chunk ends inside a key block, and the
    // second chunk starts there. Single rows follow.
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

// Several threads share the key parts (kKeyPart) of a sequence. One chunk ends past a part
// boundary. Single rows lie before, at and after the boundary.
TEST_P(AttentionTest, SharedKeysGiveTheSameBits) {
  Random random(6);
  ThreadPool one(1), two(2), nine(9);
  const Shape shapes[] = {
      {4, 2, 16, 16, DType::kBF16, 0, false},
      {6, 1, 40, 1, DType::kF32, 0, true},
      {3, 1, 8, 4, DType::kF32, 3000, true},
      {2, 1, 24, 8, DType::kF16, 1500, false},
      {66, 1, 8, 16, DType::kF32, 0, true},
      {4, 4, 16, 32, DType::kF8E4M3, 0, false},
      {8, 1, 20, 16, DType::kI8, 4000, false},
      {4, 2, 16, 16, DType::kBF16, 0, true, true},
      {3, 1, 8, 4, DType::kBF16, 3001, true, true},
      {66, 1, kSanitized ? 12 : 40, 16, DType::kBF16, 0, false, true},
      {4, 2, 16, 16, DType::kF32, 0, true, false, 4097},
      {6, 2, kSanitized ? 40 : 20, 16, DType::kBF16, 0, false, true, 2000},
      {6, 2, 24, 16, DType::kF32, 0, true, false, 0, 10, 0.7f},
      {8, 1, 20, 16, DType::kBF16, 3000, true, true, 0, 32, 0.7f},
  };
  constexpr int32_t kKeys = 5000, kRows = kSanitized ? 4 : 6, kEnd = 2 * cpu::kKeyPart + kRows / 2;
  for (const Shape& s : shapes) {
    const int64_t width = s.heads * s.head_dim, out_width = s.heads * s.ValueWidth();
    const std::vector<int32_t> pages = random.Shuffled(CeilDiv(kKeys, s.page_size));
    const int64_t slots = std::ssize(pages) * s.page_size;
    const Cache k(s.dtype, random.Normal(slots * s.kv_heads * s.head_dim), slots, s.kv_heads,
                  s.head_dim);
    const Cache v(s.dtype, random.Normal(slots * s.kv_heads * s.ValueWidth()), slots, s.kv_heads,
                  s.ValueWidth());
    // The sinks are above the scores of some parts and below the scores of others.
    const std::vector<float> q = Rounded(random.Normal((kRows + 1) * width), s.rounded),
                             sinks = random.Normal(s.heads, 3.0f);
    std::vector<float> out((kRows + 1) * out_width), expected(out.size()), again(out.size());
    const SequenceSpan both[] = {
        {.rows = kRows, .kv_len = kEnd, .pages = pages.data()},
        {.row_begin = kRows, .rows = 1, .kv_len = kKeys, .pages = pages.data()}};
    AttentionParams p = s.Params();
    p.q = q.data();
    p.k_cache = k.bytes.data();
    p.v_cache = v.bytes.data();
    p.sinks = s.sinks ? sinks.data() : nullptr;
    p.sequences = both;
    p.out = out.data();
    Attention(p, one);
    p.out = expected.data();
    reference::Attention(p);
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], s.Tolerance()) << s.head_dim << " " << i;
    }
    p.out = again.data();
    for (ThreadPool* pool : {&two, &nine}) {
      std::fill(again.begin(), again.end(), 0.0f);
      Attention(p, *pool);
      EXPECT_TRUE(SameBits(out, again)) << s.head_dim << " threads " << pool->num_threads();
      std::fill(again.begin(), again.end(), 0.0f);
      for (int32_t row = 0; row <= kRows; ++row) {
        const SequenceSpan single = {.row_begin = row,
                                     .rows = 1,
                                     .kv_len = row < kRows ? kEnd - kRows + row + 1 : kKeys,
                                     .pages = pages.data()};
        p.sequences = {&single, 1};
        Attention(p, *pool);
      }
      p.sequences = both;
      EXPECT_TRUE(SameBits(out, again)) << s.head_dim << " rows alone";
    }
  }
}

// Copies the keys from position `begin` on to the slots after the pages, in a random order. Returns
// their slots. The old places then contain bytes that are no keys.
std::vector<int32_t> MoveToBranch(Random& random, const SequenceSpan& span, int32_t begin,
                                  int32_t page_size, int64_t slots,
                                  std::span<std::vector<char>* const> caches) {
  std::vector<int32_t> branch = random.Shuffled(span.kv_len - begin);
  for (std::vector<char>* cache : caches) {
    const int64_t slot_bytes = std::ssize(*cache) / slots;
    cache->resize((slots + std::ssize(branch)) * slot_bytes);
    for (int32_t key = begin; key < span.kv_len; ++key) {
      char* const from = cache->data() + span.SlotOf(key, page_size) * slot_bytes;
      std::copy_n(from, slot_bytes, cache->data() + (slots + branch[key - begin]) * slot_bytes);
      std::fill_n(from, slot_bytes, static_cast<char>(0x7f));
    }
  }
  for (int32_t& slot : branch) slot += static_cast<int32_t>(slots);
  return branch;
}

// Rows of a branch attend to the keys in its slots. Their bits are those of the same keys in pages.
TEST_P(AttentionTest, BranchesGiveTheBitsOfPages) {
  Random random(8);
  ThreadPool one(1), three(3);
  for (const Shape& shape : kShapes) {
    for (const int32_t begin : {0, 128, 197, 200}) {
      Batch batch(random, shape);
      batch.sequences.erase(batch.sequences.begin());
      AttentionParams p = batch.Params();
      Attention(p, one);
      const std::vector<float> want = batch.out;
      std::fill(batch.out.begin(), batch.out.end(), 0.0f);
      std::vector<char>* const caches[] = {&batch.k, &batch.v};
      SequenceSpan& span = batch.sequences[0];
      const std::vector<int32_t> branch =
          MoveToBranch(random, span, begin, shape.page_size, 512, caches);
      span.branch = branch.data();
      span.branch_begin = begin;
      p = batch.Params();
      Attention(p, three);
      EXPECT_TRUE(SameBits(want, batch.out)) << shape.head_dim << " from " << begin;
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
    // Copies the KV pages in the order of the page table, so that page i gets the id i.
    for (std::vector<char>* cache : {&batch.k, &batch.v}) {
      const int64_t page_bytes = shape.page_size * std::ssize(*cache) / 512;
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
  for (const Shape& shape : {Shape{2, 1, 16, 1, DType::kF32, 20, false},
                             Shape{2, 1, 16, 1, DType::kBF16, 20, false, true}}) {
    Batch batch(random, shape);
    AttentionParams p = batch.Params();
    Attention(p, pool);
    // Rows 100 to 109 attend to keys 81 to 109. Values elsewhere may be anything, even NaN.
    std::vector<float> v(batch.v_values.size(), std::nanf("")), k = v;
    for (int32_t j = 81; j < 110; ++j) {
      const int32_t at = batch.pages[j] * 16;
      std::copy_n(batch.v_values.begin() + at, 16, v.begin() + at);
      std::copy_n(batch.k_values.begin() + at, 16, k.begin() + at);
    }
    const auto slots = static_cast<int64_t>(v.size()) / 16;
    const Cache keys(shape.dtype, k, slots, 1, 16), values(shape.dtype, v, slots, 1, 16);
    std::vector<float> again(batch.out.size());
    const SequenceSpan chunk = {
        .row_begin = 100, .rows = 10, .kv_len = 110, .pages = batch.pages.data()};
    p.k_cache = keys.bytes.data();
    p.v_cache = values.bytes.data();
    p.sequences = {&chunk, 1};
    p.out = again.data();
    Attention(p, pool);
    EXPECT_TRUE(SameBits(again.data() + 100 * batch.width(), batch.out.data() + 100 * batch.width(),
                         10 * batch.width()));
  }
}

TEST_P(AttentionTest, NoSequencesAndNoRowsDoNothing) {
  ThreadPool pool(2);
  Attention({.heads = 2, .kv_heads = 1, .head_dim = 8}, pool);
  const SequenceSpan empty = {};
  Attention({.heads = 2, .kv_heads = 1, .head_dim = 8, .sequences = {&empty, 1}}, pool);
  LatentAttention({.heads = 2, .lora = 8, .rope = 8, .sequences = {&empty, 1}}, pool);
}

struct Latent {
  int64_t heads, lora, rope;
  DType dtype;
  bool rounded = false;

  // Borrows all arguments. The cache has pages of one slot, and no scales.
  LatentAttentionParams Params(const std::vector<float>& q, const Cache& cache,
                               const SequenceSpan& span, std::vector<float>* out) const {
    return {.q = q.data(),
            .ldq = heads * (lora + rope),
            .cache = cache.bytes.data(),
            .kv_dtype = dtype,
            .heads = heads,
            .lora = lora,
            .rope = rope,
            .scale = 0.1f,
            .bfloat16_rows = rounded,
            .sequences = {&span, 1},
            .out = out->data(),
            .ldo = heads * lora};
  }
};

TEST_P(AttentionTest, LatentMatchesReferenceInAnyChunks) {
  Random random(5);
  ThreadPool one(1), three(3);
  for (const Latent& latent :
       {Latent{3, 32, 8, DType::kF32}, Latent{70, kSanitized ? 24 : 40, 16, DType::kBF16},
        Latent{16, 128, 64, DType::kF16}, Latent{5, 72, 16, DType::kF8E4M3},
        Latent{20, 100, 12, DType::kI8}, Latent{70, kSanitized ? 24 : 40, 16, DType::kBF16, true},
        Latent{5, 36, 6, DType::kBF16, true}}) {
    const auto& [heads, lora, rope, dtype, rounded] = latent;
    constexpr int32_t kKeys = 130;
    const int64_t width = lora + rope;
    const std::vector<int32_t> pages = random.Shuffled(kKeys);
    const float scale_of_codes = 0.4f;
    const float* const cache_scale = dtype == DType::kF8E4M3 ? &scale_of_codes : nullptr;
    const Cache cache(dtype, random.Normal(kKeys * width), kKeys, /*heads=*/1, width, cache_scale);
    const std::vector<float> q = Rounded(random.Normal(kKeys * heads * width), rounded);
    std::vector<float> out(kKeys * heads * lora), expected(out.size()), again(out.size());
    SequenceSpan span = {.rows = kKeys, .kv_len = kKeys, .pages = pages.data()};
    LatentAttentionParams p = latent.Params(q, cache, span, &out);
    p.cache_scale = cache_scale;
    LatentAttention(p, one);
    p.out = expected.data();
    reference::LatentAttention(p);
    const float tolerance = rounded ? 0.01f : 100 * kEpsilon;
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], tolerance) << i;
    for (const auto& [begin, end] : {std::pair{0, 65}, std::pair{65, 129}, std::pair{129, 130}}) {
      span = {.row_begin = begin, .rows = end - begin, .kv_len = end, .pages = pages.data()};
      p.out = again.data();
      LatentAttention(p, three);
    }
    EXPECT_TRUE(SameBits(out, again)) << heads;
  }
}

TEST_P(AttentionTest, LatentBranchesGiveTheBitsOfPages) {
  Random random(9);
  ThreadPool two(2);
  constexpr int32_t kKeys = 150, kRows = 3, kPageSize = 4, kSlots = 160;
  constexpr int64_t kHeads = 5, kLora = 24, kRope = 8, kWidth = kLora + kRope;
  for (const bool rounded : {false, true}) {
    for (const int32_t begin : {0, 127, 128, 147, 149}) {
      const std::vector<int32_t> pages = random.Shuffled(kSlots / kPageSize);
      Cache cache(DType::kBF16, random.Normal(kSlots * kWidth), kSlots, /*heads=*/1, kWidth);
      const std::vector<float> q = Rounded(random.Normal(kRows * kHeads * kWidth), rounded);
      std::vector<float> want(kRows * kHeads * kLora), got(want.size());
      SequenceSpan span = {.rows = kRows, .kv_len = kKeys, .pages = pages.data()};
      LatentAttentionParams p =
          Latent{kHeads, kLora, kRope, DType::kBF16, rounded}.Params(q, cache, span, &want);
      p.page_size = kPageSize;
      LatentAttention(p, two);
      std::vector<char>* const caches[] = {&cache.bytes};
      const std::vector<int32_t> branch =
          MoveToBranch(random, span, begin, kPageSize, kSlots, caches);
      span.branch = branch.data();
      span.branch_begin = begin;
      p.cache = cache.bytes.data();
      p.out = got.data();
      LatentAttention(p, two);
      EXPECT_TRUE(SameBits(want, got)) << begin;
    }
  }
}

TEST_P(AttentionTest, SharedLatentsGiveTheSameBits) {
  Random random(7);
  ThreadPool one(1), five(5);
  constexpr int32_t kKeys = cpu::kKeyPart + 100, kRows = 3;
  constexpr int64_t kLora = 24, kRope = 8, kWidth = kLora + kRope;
  for (const auto& [heads, rounded] : {std::pair{int64_t{2}, false},
                                       {int64_t{70}, false},
                                       {int64_t{2}, true},
                                       {int64_t{70}, true}}) {
    const std::vector<int32_t> pages = random.Shuffled(kKeys);
    const Cache cache(DType::kBF16, random.Normal(kKeys * kWidth), kKeys, /*heads=*/1, kWidth);
    const std::vector<float> q = Rounded(random.Normal(kRows * heads * kWidth), rounded);
    std::vector<float> out(kRows * heads * kLora), expected(out.size()), again(out.size());
    SequenceSpan span = {.rows = kRows, .kv_len = kKeys, .pages = pages.data()};
    LatentAttentionParams p =
        Latent{heads, kLora, kRope, DType::kBF16, rounded}.Params(q, cache, span, &out);
    LatentAttention(p, one);
    p.out = expected.data();
    reference::LatentAttention(p);
    const float tolerance = rounded ? 0.01f : 100 * kEpsilon;
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], tolerance) << i;
    p.out = again.data();
    LatentAttention(p, five);
    EXPECT_TRUE(SameBits(out, again)) << heads;
    std::fill(again.begin(), again.end(), 0.0f);
    for (int32_t row = 0; row < kRows; ++row) {
      span = {
          .row_begin = row, .rows = 1, .kv_len = kKeys - kRows + row + 1, .pages = pages.data()};
      LatentAttention(p, five);
    }
    EXPECT_TRUE(SameBits(out, again)) << heads << " rows alone";
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
