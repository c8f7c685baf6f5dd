// Residual streams against plain sums in double.
#include "kernels/streams.h"

#include <cmath>

#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Rows and columns are divided by their sums plus eps, in the order of the paper.
void Sinkhorn(Matrix& m, int iterations, double eps) {
  const size_t n = m.size();
  for (int i = 0; i < iterations; ++i) {
    for (size_t r = 0; r < n && i > 0; ++r) {
      double sum = eps;
      for (const double x : m[r]) sum += x;
      for (double& x : m[r]) x /= sum;
    }
    for (size_t c = 0; c < n; ++c) {
      double sum = eps;
      for (size_t r = 0; r < n; ++r) sum += m[r][c];
      for (size_t r = 0; r < n; ++r) m[r][c] /= sum;
    }
  }
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST(StreamsTest, CollapseAndExpandMatchPlainSums) {
  ThreadPool pool(2);
  Random random(4);
  constexpr float kEps = 1e-3f;
  for (int round = 0; round < 20; ++round) {
    const int64_t m = random.Below(9), n = 1 + random.Below(5), width = 1 + random.Below(70);
    const int iterations = static_cast<int>(1 + random.Below(5));
    const int64_t k = StreamLogits(n);
    std::vector<float> x = random.Normal(m * n * width);
    const std::vector<float> logits = random.Normal(m * k), base = random.Normal(k);
    const std::vector<float> scale = random.Normal(3), branch = random.Normal(m * width);
    std::vector<float> squares(m), mix(m * StreamMix(n)), y(m * width), head(m * width);
    for (int64_t t = 0; t < m; ++t)
      squares[t] = static_cast<float>(std::pow(Norm(x.data() + t * n * width, n * width), 2));
    CollapseStreamsParams p{.x = x.data(),
                            .m = m,
                            .n = n,
                            .width = width,
                            .logits = logits.data(),
                            .squares = squares.data(),
                            .base = base.data(),
                            .scale = scale.data(),
                            .iterations = iterations,
                            .eps = kEps,
                            .norm_eps = kEps,
                            .mix = mix.data(),
                            .y = y.data()};
    CollapseStreams(p, pool);
    const std::vector<float> before = x;
    ExpandStreams(
        {.x = x.data(), .mix = mix.data(), .branch = branch.data(), .m = m, .n = n, .width = width},
        pool);
    for (int64_t t = 0; t < m; ++t) {
      const double r =
          1.0 / std::sqrt(double{squares[t]} / static_cast<double>(n * width) + double{kEps});
      const auto logit = [&](int64_t i, int part) {
        return r * logits[t * k + i] * scale[part] + base[i];
      };
      Matrix matrix(n, std::vector<double>(n));
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += std::exp(logit(2 * n + i * n + j, 2));
        for (int64_t j = 0; j < n; ++j)
          matrix[i][j] = std::exp(logit(2 * n + i * n + j, 2)) / sum + double{kEps};
      }
      Sinkhorn(matrix, iterations, double{kEps});
      for (int64_t c = 0; c < width; ++c) {
        const auto old = [&](int64_t i) { return double{before[(t * n + i) * width + c]}; };
        double collapsed = 0;
        for (int64_t i = 0; i < n; ++i) collapsed += (Sigmoid(logit(i, 0)) + double{kEps}) * old(i);
        ASSERT_NEAR(y[t * width + c], collapsed, 1e-4);
        for (int64_t i = 0; i < n; ++i) {
          double want = 2.0 * Sigmoid(logit(n + i, 1)) * double{branch[t * width + c]};
          for (int64_t j = 0; j < n; ++j) want += matrix[j][i] * old(j);
          ASSERT_NEAR(x[(t * n + i) * width + c], want, 1e-4);
        }
      }
    }
  }
}

// The head has only the first logits and one scale.
TEST(StreamsTest, HeadCollapsesWithItsOwnLogits) {
  ThreadPool pool(1);
  const std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f}, logits = {0.5f, -1.0f};
  const std::vector<float> squares = {30.0f}, base = {0.1f, 0.2f}, scale = {2.0f};
  std::vector<float> y(2);
  CollapseStreams({.x = x.data(),
                   .m = 1,
                   .n = 2,
                   .width = 2,
                   .logits = logits.data(),
                   .squares = squares.data(),
                   .base = base.data(),
                   .scale = scale.data(),
                   .eps = 0.0f,
                   .norm_eps = 0.0f,
                   .y = y.data()},
                  pool);
  const double r = 1.0 / std::sqrt(30.0 / 4), a = Sigmoid(r * 0.5 * 2 + 0.1),
               b = Sigmoid(-r * 2 + 0.2);
  EXPECT_NEAR(y[0], a * 1 + b * 3, 1e-5);
  EXPECT_NEAR(y[1], a * 2 + b * 4, 1e-5);
}

}  // namespace
}  // namespace switchyard::kernels
