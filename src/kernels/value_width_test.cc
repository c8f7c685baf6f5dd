// Attention with values of another width than keys, on random shapes.
#include <algorithm>

#include "core/test_effort.h"
#include "kernels/cache_rows.h"
#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

class ValueWidthTest : public IsaTest {};

std::vector<char> CacheOf(DType dtype, const std::vector<float>& rows, int64_t width) {
  std::vector<char> cache(rows.size() / width * CacheRowBytes(dtype, width));
  std::vector<int32_t> slots(rows.size() / width);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
  reference::StoreKv({.x = rows.data(),
                      .ldx = width,
                      .m = std::ssize(slots),
                      .n = width,
                      .slots = slots.data(),
                      .cache = cache.data(),
                      .dtype = dtype});
  return cache;
}

TEST_P(ValueWidthTest, RandomShapesMatchTheReference) {
  Random random(11);
  ThreadPool pool(2);
  for (int i = 0; i < FewerIfSanitized(40, 4); ++i) {
    const int64_t kv_heads = 1 + random.Below(3), heads = kv_heads * (1 + random.Below(5));
    const int64_t k_width = 2 * (1 + random.Below(40)), v_width = 1 + random.Below(70);
    const auto dtype =
        random.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kI8});
    const auto page_size = static_cast<int32_t>(random.Pick({1, 3, 16}));
    const auto kv_len = static_cast<int32_t>(1 + random.Below(300));
    const auto rows = static_cast<int32_t>(1 + random.Below(std::min(kv_len, 90)));
    const auto num_pages = static_cast<int32_t>(CeilDiv(kv_len, page_size));
    const int64_t slots = num_pages * page_size;
    const std::vector<int32_t> pages = random.Shuffled(num_pages);
    const auto k = CacheOf(dtype, random.Normal(slots * kv_heads * k_width), k_width);
    const auto v = CacheOf(dtype, random.Normal(slots * kv_heads * v_width), v_width);
    const std::vector<float> q = random.Normal(rows * heads * k_width);
    const std::vector<float> sinks = random.Normal(heads);
    // Rows of the output have columns of other owners on both sides.
    const int64_t ldo = heads * v_width + 5;
    std::vector<float> out(rows * ldo, 7.0f), expected = out;
    const SequenceSpan span = {.rows = rows, .kv_len = kv_len, .pages = pages.data()};
    AttentionParams p = {.q = q.data(),
                         .ldq = heads * k_width,
                         .k_cache = k.data(),
                         .v_cache = v.data(),
                         .kv_dtype = dtype,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = k_width,
                         .v_dim = v_width,
                         .value_scale = random.Pick({1.0f, 0.707f, -2.0f}),
                         .page_size = page_size,
                         .scale = 1.0f / std::sqrt(static_cast<float>(k_width)),
                         .window = static_cast<int32_t>(random.Below(2) * random.Below(150)),
                         .sinks = random.Below(2) == 0 ? sinks.data() : nullptr,
                         .sequences = {&span, 1},
                         .out = out.data() + 2,
                         .ldo = ldo};
    Attention(p, pool);
    p.out = expected.data() + 2;
    reference::Attention(p);
    for (size_t at = 0; at < out.size(); ++at)
      ASSERT_NEAR(out[at], expected[at], 200 * kEpsilon)
          << "shape " << i << ": " << k_width << " and " << v_width << ", element " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, ValueWidthTest, EveryIsa(), IsaName);

}  // namespace
}  // namespace switchyard::kernels
