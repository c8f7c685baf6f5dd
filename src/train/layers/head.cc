#include "train/layers/head.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/batch.h"
#include "train/layers/pointwise.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

constexpr int64_t kBlock = 256;  // rows whose logits are held

}  // namespace

template <typename T>
double HeadLoss<T>::Run(const T* x, std::span<const int32_t> targets, T scale, T* dx,
                        ThreadPool& pool) const {
  const int64_t vocab = head.n, hidden = head.k;
  // Rows without a target are left out of the products.
  std::vector<int32_t> rows;
  for (size_t t = 0; t < targets.size(); ++t)
    if (targets[t] != Batch::kIgnored) rows.push_back(static_cast<int32_t>(t));
  if (dx != nullptr) std::fill_n(dx, static_cast<int64_t>(targets.size()) * hidden, T{0});
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t most = std::min(kBlock, count);
  Temporary<T> in(most * hidden), logits(most * vocab), din(most * hidden);
  std::vector<double> losses(count);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t m = std::min(kBlock, count - begin);
    for (int64_t i = 0; i < m; ++i)
      std::copy_n(x + rows[begin + i] * hidden, hidden, in.data() + i * hidden);
    const Projection<T> projection = head.Forward(in.data(), m, logits.data());
    Project<T>({&projection, 1}, pool);
    pool.RunRanges(m, 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        T* row = logits.data() + i * vocab;
        const int32_t target = targets[rows[begin + i]];
        const T wanted = row[target], largest = *std::max_element(row, row + vocab);
        const T sum = ExpSum(row, vocab, largest);
        losses[begin + i] = static_cast<double>(largest) + std::log(static_cast<double>(sum)) -
                            static_cast<double>(wanted);
        if (dx == nullptr) continue;
        const T factor = scale / sum;
        for (int64_t v = 0; v < vocab; ++v) row[v] *= factor;
        row[target] -= scale;
      }
    });
    if (dx == nullptr) continue;
    const Product<T> products[] = {head.ForInput(logits.data(), m, din.data(), false),
                                   head.ForWeight(logits.data(), in.data(), m)};
    Multiply<T>(products, pool);
    for (int64_t i = 0; i < m; ++i)
      std::copy_n(din.data() + i * hidden, hidden, dx + rows[begin + i] * hidden);
  }
  double loss = 0.0;
  for (const double l : losses) loss += l;
  return loss;
}

template struct HeadLoss<float>;
template struct HeadLoss<double>;

}  // namespace switchyard::train
