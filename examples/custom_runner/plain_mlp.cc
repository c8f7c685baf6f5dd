// A minimal runner: computes the MLP formula row by row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "my_backends.h"
#include "quant/activations.h"
#include "quant/weight_view.h"

namespace {

using namespace switchyard;

// y [w.n] = W · x + bias. Dequantizes weights of any format one row at a time. Rounds the input
// first if the checkpoint was quantized for rounded activations.
void Product(const WeightView& w, const float* bias, const float* input, float* y) {
  std::vector<float> row(w.k), x(w.k);
  RoundActivations(w.activation, w.input_scale, input, w.k, x.data());
  for (int64_t i = 0; i < w.n; ++i) {
    DequantizeRow(w, i, 0, w.k, row.data());
    y[i] = bias ? bias[i] : 0.0f;
    for (int64_t j = 0; j < w.k; ++j) y[i] += row[j] * x[j];
  }
}

class PlainMlp : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Supports(WeightFormat) const override { return true; }

  void Run(const ExpertBlock& block, const GroupedRows& rows, int64_t hidden, ThreadPool& pool,
           float* y) override {
    if (block.activation != kernels::Activation::kSwiGlu)
      throw Invalid("--moe-runner-backend plain_mlp supports only SwiGLU");
    pool.RunRanges(rows.num_rows, /*grain=*/1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        // Expert e has the rows [offsets[e], offsets[e + 1]).
        const auto after = std::ranges::upper_bound(rows.offsets, r);
        const auto& expert = block.experts[after - rows.offsets.begin() - 1];
        const int64_t from = rows.row_ids ? rows.row_ids[r] : r;
        RunRow(expert, rows.x + from * rows.ldx, y + r * hidden);
      }
    });
  }

 private:
  static void RunRow(const kernels::ExpertWeights& w, const float* x, float* y) {
    std::vector<float> gate(w.gate.n), up(w.up.n);
    Product(w.gate, w.gate_bias, x, gate.data());
    Product(w.up, w.up_bias, x, up.data());
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0f + std::exp(-gate[i]));
    Product(w.down, w.down_bias, gate.data(), y);
  }
};

}  // namespace

void AddPlainMlp(MoeBackends& backends) {
  backends.runners.Add("plain_mlp", {[] { return std::make_unique<PlainMlp>(); },
                                     "computes the MLP formula row by row"});
}
