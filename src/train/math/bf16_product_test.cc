#include "train/math/bf16_product.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "train/test_training.h"

namespace switchyard::train {
namespace {

constexpr ProductDtype kBf16 = ProductDtype::kBFloat16;

std::vector<float> Random(int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(random);
  return v;
}

std::vector<float> Rounded(std::vector<float> v) {
  for (float& x : v) x = ToFloat(ToBF16(x));
  return v;
}

struct Shape {
  int64_t m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1},      {5, 17, 3},    {6, 64, 300},
                             {13, 65, 0},    {7, 100, 513}, {49, 130, 40},
                             {200, 301, 71}, {97, 63, 1},   {48, 257, 2048}};

struct Form {
  bool a_turned, b_turned, accumulate;
};
constexpr Form kForms[] = {
    {false, false, false}, {true, false, true}, {false, true, false}, {true, true, true}};

Product<float> ProductOf(const Shape& s, const Form& form, const float* a, const float* b,
                         float* c) {
  return {.a = a,
          .a_row = form.a_turned ? 1 : s.k,
          .a_col = form.a_turned ? s.m : 1,
          .b = b,
          .b_row = form.b_turned ? 1 : s.n,
          .b_col = form.b_turned ? s.k : 1,
          .c = c,
          .ldc = s.n,
          .m = s.m,
          .n = s.n,
          .k = s.k,
          .accumulate = form.accumulate};
}

class Bf16Products : public testing::IsaTest {};

// Reference: a chain of float32 multiply-adds over the rounded operands (the product of two
// bfloat16 is exact in float32). Results are bitwise equal in every form, with and without the
// instruction, on any number of threads.
TEST_P(Bf16Products, AreChainsOverRoundedOperands) {
  std::mt19937 random(1);
  ThreadPool one(1), three(3);
  for (const Shape& s : kShapes) {
    for (const Form& form : kForms) {
      const std::vector<float> a = Random(s.m * s.k, random), b = Random(s.k * s.n, random);
      const std::vector<float> c = Random(s.m * s.n, random);
      std::vector<float> first = c, second = c, wanted = c;
      Product<float> p = ProductOf(s, form, a.data(), b.data(), first.data());
      p.dtype = kBf16;
      Multiply<float>({&p, 1}, one);
      p.c = second.data();
      Multiply<float>({&p, 1}, three);
      EXPECT_EQ(first, second) << "threads change bits";
      const std::vector<float> ra = Rounded(a), rb = Rounded(b);
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j) {
          float sum = form.accumulate ? c[i * s.n + j] : 0.0f;
          for (int64_t q = 0; q < s.k; ++q)
            sum += ra[i * p.a_row + q * p.a_col] * rb[q * p.b_row + j * p.b_col];
          wanted[i * s.n + j] = sum;
        }
      }
      ASSERT_EQ(first, wanted) << s.m << " " << s.n << " " << s.k << " " << form.a_turned;
    }
  }
}

// Products of one call may share operands, as gate and up do; rows and columns may be strided.
TEST_P(Bf16Products, ShareOperandsAndSkipPadding) {
  std::mt19937 random(2);
  ThreadPool pool(2);
  const int64_t m = 70, n = 40, k = 90, lda = 95, ldb = 52, ldc = 45;
  const std::vector<float> a = Random(m * lda, random);
  const std::vector<float> b = Random(2 * k * ldb, random);
  std::vector<float> together(2 * m * ldc, 7.0f), apart = together;
  const auto product = [&](int i, std::vector<float>& c) {
    return Product<float>{.a = a.data(),
                          .a_row = lda,
                          .b = b.data() + i * k * ldb,
                          .b_row = ldb,
                          .c = c.data() + i * m * ldc,
                          .ldc = ldc,
                          .m = m,
                          .n = n,
                          .k = k,
                          .dtype = kBf16};
  };
  const std::array<Product<float>, 2> both = {product(0, together), product(1, together)};
  Multiply<float>(both, pool);
  for (int i = 0; i < 2; ++i) {
    const Product<float> alone = product(i, apart);
    Multiply<float>({&alone, 1}, pool);
  }
  EXPECT_EQ(together, apart);
  for (int64_t row = 0; row < 2 * m; ++row)
    for (int64_t j = n; j < ldc; ++j) ASSERT_EQ(together[row * ldc + j], 7.0f);
}

TEST_P(Bf16Products, OfARowAreTheSameAlone) {
  std::mt19937 random(3);
  ThreadPool pool(2);
  const Shape s{150, 70, 531};
  const std::vector<float> a = Random(s.m * s.k, random), b = Random(s.k * s.n, random);
  std::vector<float> all(s.m * s.n), alone(s.n);
  Product<float> p = ProductOf(s, kForms[0], a.data(), b.data(), all.data());
  p.dtype = kBf16;
  Multiply<float>({&p, 1}, pool);
  p.m = 1;
  p.c = alone.data();
  for (const int64_t i : {0, 77, 149}) {
    p.a = a.data() + i * s.k;
    Multiply<float>({&p, 1}, pool);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + i * s.n)) << i;
  }
}

// Subnormal operands, sums and initial values are taken as zero. Non-finite values propagate.
TEST_P(Bf16Products, FlushSmallNumbersAndKeepWhatIsNotFinite) {
  ThreadPool pool(1);
  const float smallest = std::numeric_limits<float>::min(), inf = 1.0f / 0.0f;
  struct Case {
    float a[2], b[2], c, wanted;
  };
  const Case cases[] = {{{0.5f * smallest, 0.0f}, {1e20f, 0.0f}, 0.0f, 0.0f},
                        {{smallest, 0.0f}, {0.5f, 0.0f}, 0.0f, 0.0f},
                        {{1.5f * smallest, -smallest}, {1.0f, 1.0f}, 0.0f, 0.0f},
                        {{1.0f, 0.0f}, {1.0f, 0.0f}, inf, inf},
                        {{inf, 0.0f}, {1.0f, 0.0f}, 0.0f, inf},
                        {{3e38f, 3e38f}, {2.0f, 2.0f}, 0.0f, inf},
                        {{1.0f, inf}, {-inf, 1.0f}, 0.0f, std::nanf("")},
                        {{std::nanf(""), 0.0f}, {1.0f, 1.0f}, 0.0f, std::nanf("")}};
  for (const Case& t : cases) {
    float c = t.c;
    Product<float> p = ProductOf({1, 1, 2}, {false, false, true}, t.a, t.b, &c);
    p.dtype = kBf16;
    Multiply<float>({&p, 1}, pool);
    if (std::isnan(t.wanted)) {
      EXPECT_TRUE(std::isnan(c)) << c;
    } else {
      EXPECT_EQ(c, t.wanted);
    }
  }
  float small = 0.5f * smallest;  // not flushed, because the floating-point mode was restored
  EXPECT_GT(small * 1.0f, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Isa, Bf16Products, ::testing::Values("reference", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard::train
