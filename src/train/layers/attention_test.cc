#include "train/layers/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "train/test_training.h"

namespace switchyard::train {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kQk = 20, kV = 12;

template <typename T>
struct Tensors {
  RowLayout rows;
  AttentionShape<T> shape;
  std::vector<T> q, k, v, out, log_sums, dout, dq, dk, dv;

  HeadRows<const T> In(const std::vector<T>& x, int64_t heads, int64_t dim) const {
    return {x.data(), heads * dim, dim};
  }
  HeadRows<T> Out(std::vector<T>& x, int64_t heads, int64_t dim) const {
    return {x.data(), heads * dim, dim};
  }
  void Run(ThreadPool& pool) {
    Attention<T>(shape, rows, In(q, kHeads, kQk), In(k, kKvHeads, kQk), In(v, kKvHeads, kV),
                 Out(out, kHeads, kV), log_sums.data(), pool);
    AttentionGradient<T>(shape, rows, In(q, kHeads, kQk), In(k, kKvHeads, kQk), In(v, kKvHeads, kV),
                         In(out, kHeads, kV), log_sums.data(), In(dout, kHeads, kV),
                         Out(dq, kHeads, kQk), Out(dk, kKvHeads, kQk), Out(dv, kKvHeads, kV), pool);
  }
};

template <typename T>
Tensors<T> Make(std::vector<int32_t> begins, int32_t window,
                ProductDtype products = ProductDtype::kFloat32) {
  Tensors<T> t;
  t.rows = RowLayout::Of(std::move(begins));
  t.shape = {.heads = kHeads,
             .kv_heads = kKvHeads,
             .qk_dim = kQk,
             .v_dim = kV,
             .scale = T(0.5),
             .window = window,
             .products = products};
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const int64_t m = t.rows.rows();
  for (auto [x, width] : {std::pair{&t.q, kHeads * kQk}, std::pair{&t.k, kKvHeads * kQk},
                          std::pair{&t.v, kKvHeads * kV}, std::pair{&t.dout, kHeads * kV}}) {
    x->resize(m * width);
    for (T& e : *x) e = uniform(random);
  }
  // Previous contents are overwritten.
  t.out.assign(m * kHeads * kV, T(9));
  t.log_sums.assign(m * kHeads, T(9));
  t.dq.assign(t.q.size(), T(9));
  t.dk.assign(t.k.size(), T(9));
  t.dv.assign(t.v.size(), T(9));
  return t;
}

// Reference implementation: a row's probabilities, then the outputs and gradients.
void Textbook(Tensors<double>* t) {
  t->dq.assign(t->q.size(), 0.0);
  t->dk.assign(t->k.size(), 0.0);
  t->dv.assign(t->v.size(), 0.0);
  t->out.assign(t->out.size(), 0.0);
  for (int64_t s = 0; s < t->rows.sequences(); ++s) {
    for (int64_t i = t->rows.begins[s]; i < t->rows.begins[s + 1]; ++i) {
      const int64_t window = t->shape.window > 0 ? t->shape.window : t->rows.rows();
      const int64_t first = std::max<int64_t>(t->rows.begins[s], i + 1 - window);
      for (int64_t h = 0; h < kHeads; ++h) {
        const int64_t g = h / (kHeads / kKvHeads), qi = (i * kHeads + h) * kQk;
        const int64_t oi = (i * kHeads + h) * kV;
        std::vector<double> p, dp;
        double sum = 0.0, along = 0.0;
        for (int64_t j = first; j <= i; ++j) {
          double score = 0.0;
          for (int64_t c = 0; c < kQk; ++c)
            score += t->q[qi + c] * t->k[(j * kKvHeads + g) * kQk + c];
          p.push_back(std::exp(score * t->shape.scale));
          sum += p.back();
        }
        for (int64_t j = first; j <= i; ++j) {
          p[j - first] /= sum;
          dp.push_back(0.0);
          for (int64_t c = 0; c < kV; ++c) {
            const int64_t vj = (j * kKvHeads + g) * kV + c;
            t->out[oi + c] += p[j - first] * t->v[vj];
            dp.back() += t->dout[oi + c] * t->v[vj];
            t->dv[vj] += p[j - first] * t->dout[oi + c];
          }
          along += p[j - first] * dp.back();
        }
        for (int64_t j = first; j <= i; ++j) {
          const double ds = p[j - first] * (dp[j - first] - along) * t->shape.scale;
          for (int64_t c = 0; c < kQk; ++c) {
            const int64_t kj = (j * kKvHeads + g) * kQk + c;
            t->dq[qi + c] += ds * t->k[kj];
            t->dk[kj] += ds * t->q[qi + c];
          }
        }
      }
    }
  }
}

template <typename T>
void ExpectNear(const std::vector<T>& found, const std::vector<double>& wanted, double bound,
                const char* what) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], bound) << what << i;
}

class AttentionOn : public testing::IsaTest {
 public:
  template <typename T>
  void Compare(const std::vector<int32_t>& begins, int32_t window, double bound,
               ProductDtype products = ProductDtype::kFloat32) {
    Tensors<double> wanted = Make<double>(begins, window);
    Textbook(&wanted);
    Tensors<T> one = Make<T>(begins, window, products);
    Tensors<T> three = Make<T>(begins, window, products);
    ThreadPool single(1), several(3);
    one.Run(single);
    ExpectNear(one.out, wanted.out, bound, "out ");
    ExpectNear(one.dq, wanted.dq, bound, "dq ");
    ExpectNear(one.dk, wanted.dk, bound, "dk ");
    ExpectNear(one.dv, wanted.dv, bound, "dv ");
    three.Run(several);
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.dq, three.dq);
    EXPECT_EQ(one.dk, three.dk);
    EXPECT_EQ(one.dv, three.dv);
  }
};

// Sequences of one row, of part of a block, and of several blocks; windows that start within
// blocks.
TEST_P(AttentionOn, IsThatOfTheTextbook) {
  for (const int32_t window : {0, 1, 100, 131}) {
    Compare<float>({0, 1, 37, 337}, window, 2e-5);
    Compare<double>({0, 1, 37, 337}, window, 1e-12);
  }
}

// Each operand has a relative error of at most 1/256. In sums of some hundred elements, these
// errors partly cancel.
TEST_P(AttentionOn, IsNearTheTextbookInBfloat16) {
  for (const int32_t window : {0, 1, 100, 131})
    Compare<float>({0, 1, 38, 337}, window, 0.04, ProductDtype::kBFloat16);
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionOn, ::testing::Values("reference", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard::train
