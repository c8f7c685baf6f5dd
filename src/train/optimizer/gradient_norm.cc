#include "train/optimizer/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace switchyard::train {
namespace {

constexpr int64_t kBlock = 1 << 14;  // elements summed by one thread
constexpr int kLanes = 8;            // partial sums that the compiler keeps in registers

double SumOfSquares(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return std::accumulate(lanes, lanes + kLanes, 0.0);
}

double SumOfSquares(const std::vector<float>& x, ThreadPool& pool) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<double> blocks(static_cast<size_t>((n + kBlock - 1) / kBlock));
  pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t b) {
    blocks[static_cast<size_t>(b)] =
        SumOfSquares(x.data() + b * kBlock, std::min(kBlock, n - b * kBlock));
  });
  return std::accumulate(blocks.begin(), blocks.end(), 0.0);
}

}  // namespace

GradientNorm NormOfGradients(const Catalog& catalog, ThreadPool& pool) {
  std::vector<double> mine;
  for (const Parameter<float>* p : catalog.owned()) mine.push_back(SumOfSquares(p->gradient, pool));
  const std::vector<double> sums = catalog.Gather(mine);
  GradientNorm out;
  auto next = sums.begin();
  for (const auto& [name, tensor] : catalog.tensors()) {
    for (size_t piece = 0; piece < tensor.pieces.size(); ++piece) {
      const double sum = *next++;
      // Squares of finite float32 numbers do not overflow in double.
      if (!std::isfinite(sum) && out.not_finite.empty()) out.not_finite = name;
      out.norm += sum;
    }
  }
  out.norm = std::sqrt(out.norm);
  return out;
}

double ClipScale(double norm, double limit) {
  return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace switchyard::train
