#include "train/math/product.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "train/test_training.h"

namespace switchyard::train {
namespace {

std::vector<float> Random(int64_t n, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(random);
  return v;
}

struct Form {
  bool a_turned, b_turned, accumulate;
};

class Products : public testing::IsaTest {};

TEST_P(Products, AreThoseOfTheTextbookAndIndependentOfThreads) {
  std::mt19937 random(1);
  ThreadPool one(1), three(3);
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                {5, 17, 3},
                                {6, 64, 300},
                                {13, 65, 0},
                                {7, 100, 513},
                                {256, 130, 40},
                                {200, 301, 70}}) {
    for (const Form& form : {Form{false, false, false}, Form{true, false, true},
                             Form{false, true, false}, Form{true, true, true}}) {
      const std::vector<float> a = Random(m * k, random), b = Random(k * n, random);
      const std::vector<float> c = Random(m * n, random);
      Product<float> p{.a = a.data(),
                       .a_row = form.a_turned ? 1 : k,
                       .a_col = form.a_turned ? m : 1,
                       .b = b.data(),
                       .b_row = form.b_turned ? 1 : n,
                       .b_col = form.b_turned ? k : 1,
                       .ldc = n,
                       .m = m,
                       .n = n,
                       .k = k,
                       .accumulate = form.accumulate};
      std::vector<float> first = c, second = c;
      p.c = first.data();
      Multiply<float>({&p, 1}, one);
      p.c = second.data();
      Multiply<float>({&p, 1}, three);
      EXPECT_EQ(first, second);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = form.accumulate ? c[i * n + j] : 0.0;
          for (int64_t q = 0; q < k; ++q)
            sum += static_cast<double>(a[i * p.a_row + q * p.a_col]) * b[q * p.b_row + j * p.b_col];
          ASSERT_NEAR(first[i * n + j], sum, 3e-5) << m << " " << n << " " << k;
        }
      }
    }
  }
}

// A row's result does not depend on other rows, so micro-batches and ranks change no bit.
TEST_P(Products, OfARowAreTheSameAlone) {
  std::mt19937 random(2);
  ThreadPool pool(2);
  const int64_t m = 150, n = 70, k = 530;
  const std::vector<float> a = Random(m * k, random), b = Random(k * n, random);
  std::vector<float> all(m * n), alone(n);
  Product<float> p{.a = a.data(),
                   .a_row = k,
                   .b = b.data(),
                   .b_row = n,
                   .c = all.data(),
                   .ldc = n,
                   .m = m,
                   .n = n,
                   .k = k};
  Multiply<float>({&p, 1}, pool);
  p.m = 1;
  p.c = alone.data();
  for (const int64_t i : {0, 77, 149}) {
    p.a = a.data() + i * k;
    Multiply<float>({&p, 1}, pool);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + i * n)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Products, ::testing::Values("reference", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard::train
