#include "train/layers/head.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/batch.h"
#include "train/layers/pointwise.h"
#include "train/math/row_math.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

constexpr int64_t kBlock = 256;  // rows for which logits are computed at a time

// Partial softmax statistics of a row over one part of the vocabulary.
template <typename T>
struct PartialSoftmax {
  T largest = 0, sum = 0;  // maximum logit; sum of e^(logit - largest)
  T wanted = 0;            // the target's logit, on the rank that holds it
};

// Combines the statistics of row i over the ranks, in rank order. `every` [ranks, m]: the partial
// statistics of all ranks.
template <typename T>
PartialSoftmax<T> Join(const std::vector<PartialSoftmax<T>>& every, int64_t ranks, int64_t m,
                       int64_t i) {
  PartialSoftmax<T> all = every[i];
  if (ranks == 1) return all;
  for (int64_t r = 1; r < ranks; ++r) all.largest = std::max(all.largest, every[r * m + i].largest);
  all.sum = all.wanted = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    const PartialSoftmax<T>& part = every[r * m + i];
    all.sum += part.sum * std::exp(part.largest - all.largest);
    all.wanted += part.wanted;
  }
  return all;
}

}  // namespace

template <typename T>
double HeadLoss<T>::Run(const T* x, std::span<const int32_t> targets, T scale, T* dx,
                        ThreadPool& pool) const {
  const int64_t vocab = head.n, hidden = head.k, first_id = head.weight->slice.begin;
  const Range mine = tp.Mine(std::ssize(targets));
  // Rows without a target are omitted from the products.
  std::vector<int32_t> rows;
  for (size_t t = 0; t < targets.size(); ++t)
    if (targets[t] != Batch::kIgnored) rows.push_back(static_cast<int32_t>(t));
  if (dx != nullptr) std::fill_n(dx, static_cast<int64_t>(targets.size()) * hidden, T{0});
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t most = std::min(kBlock, count);
  ScratchBuffer<T> in(most * hidden), logits(most * vocab), din(most * hidden);
  std::vector<double> losses(count);
  std::vector<PartialSoftmax<T>> parts, every;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t m = std::min(kBlock, count - begin);
    for (int64_t i = 0; i < m; ++i)
      std::copy_n(x + rows[begin + i] * hidden, hidden, in.data() + i * hidden);
    const Projection<T> projection = head.Forward(in.data(), m, logits.data());
    Project<T>({&projection, 1}, pool);
    parts.assign(m, {});
    every.resize(tp.size() * m);
    // Index of the target in this rank's part of the vocabulary, or -1.
    const auto target_of = [&](int64_t i) {
      const int64_t id = targets[rows[begin + i]] - first_id;
      return id >= 0 && id < vocab ? id : -1;
    };
    pool.RunRanges(m, 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        T* row = logits.data() + i * vocab;
        const int64_t target = target_of(i);
        parts[i].largest = Largest(row, vocab);
        parts[i].wanted = target < 0 ? T{0} : row[target];
        parts[i].sum = ExpSum(row, vocab, parts[i].largest);
      }
    });
    tp.GatherEqual(&parts.data()->largest, 3 * m, &every.data()->largest);
    pool.RunRanges(m, 4, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const PartialSoftmax<T> all = Join(every, tp.size(), m, i);
        const int32_t at = rows[begin + i];
        if (at >= mine.begin && at < mine.end) {
          losses[begin + i] = static_cast<double>(all.largest) +
                              std::log(static_cast<double>(all.sum)) -
                              static_cast<double>(all.wanted);
        }
        if (dx == nullptr) continue;
        T* row = logits.data() + i * vocab;
        Scale(row, vocab, scale / all.sum * std::exp(parts[i].largest - all.largest));
        if (const int64_t target = target_of(i); target >= 0) row[target] -= scale;
      }
    });
    if (dx == nullptr) continue;
    const Product<T> products[] = {head.ForInput(logits.data(), m, din.data(), false),
                                   head.ForWeight(logits.data(), in.data(), m)};
    const size_t learned = head.weight->gradient.empty() ? 1 : 2;
    Multiply<T>(std::span(products).first(learned), pool);
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
