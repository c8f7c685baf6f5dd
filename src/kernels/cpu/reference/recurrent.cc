#include "kernels/recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace switchyard::kernels::reference {
namespace {

template <typename Params>
std::span<const StateSpan> SpansOf(const Params& p) {
  return {p.sequences, static_cast<size_t>(p.num_sequences)};
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Silu(double x) { return x * Sigmoid(x); }

double SoftPlus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

void Normalise(float* x, int64_t n, double scale) {
  double sum = kDeltaNormEps;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  const double factor = scale / std::sqrt(sum);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * factor);
}

// The decays and the step of a row of a head.
void Gates(const GatedDeltaParams& p, int64_t row, int64_t head, std::span<double> decays,
           double* step) {
  if (p.rule == StateRule::kFixed) {
    decays[0] = std::exp(double{p.rate[head]});
    *step = 1.0;
    return;
  }
  const int64_t group = p.value_heads / p.key_heads, g = head / group, i_group = head % group;
  const int64_t n = p.decays();
  const float* a = p.a + row * p.ld_gates + g * p.a_stride + i_group * n;
  const float* bias = p.bias + head * n;
  if (p.rule == StateRule::kMamba2) {
    *step = std::max(SoftPlus(double{a[0]} + bias[0]), double{p.min_step});
    decays[0] = std::exp(p.rate[head] * *step);
    return;
  }
  const double b = p.b[row * p.ld_gates + g * p.b_stride + i_group];
  *step = Sigmoid(b);
  for (int64_t i = 0; i < n; ++i) {
    const double x = double{a[i]} + bias[i];
    decays[static_cast<size_t>(i)] = std::exp(p.bound < 0.0f ? p.bound * Sigmoid(-p.rate[head] * x)
                                                             : p.rate[head] * SoftPlus(x));
  }
}

// One row of one head: S [key_dim, value_dim] in place.
void Step(const GatedDeltaParams& p, int64_t row, int64_t head, float* s) {
  const int64_t group = p.value_heads / p.key_heads, g = head / group, i_group = head % group;
  const float* q = p.q + row * p.ld + g * p.q_stride;
  const float* k = p.k + row * p.ld + g * p.k_stride;
  const float* v = p.v + row * p.ld + g * p.v_stride + i_group * p.value_dim;
  std::vector<double> decays(static_cast<size_t>(p.decays()));
  double step = 0;
  Gates(p, row, head, decays, &step);
  const auto decay = [&](int64_t i) { return decays[decays.size() == 1 ? 0 : i]; };
  const bool sums = !IsDeltaRule(p.rule);
  const double skip = p.rule == StateRule::kMamba2 ? p.skip[head] : 0.0;
  float* out = p.out + row * p.ldo + head * p.value_dim;
  for (int64_t c = 0; c < p.value_dim; ++c) {
    double predicted = 0, sum = skip * v[c];
    for (int64_t i = 0; i < p.key_dim && !sums; ++i)
      predicted += decay(i) * s[i * p.value_dim + c] * k[i];
    const double delta = step * (v[c] - predicted);
    for (int64_t i = 0; i < p.key_dim; ++i) {
      float& entry = s[i * p.value_dim + c];
      entry = static_cast<float>(decay(i) * entry + k[i] * delta);
      sum += double{entry} * q[i];
    }
    out[c] = static_cast<float>(sum);
  }
}

}  // namespace

void ShortConv(const ShortConvParams& p) {
  const int64_t all = p.groups * p.channels, kept = p.width - 1;
  for (const StateSpan& sequence : SpansOf(p)) {
    const float* from = sequence.from < 0 ? nullptr : p.states + sequence.from * p.state_stride;
    // Input of channel c of group g, `row` rows after the beginning of the span.
    const auto input = [&](int64_t row, int64_t g, int64_t c) {
      if (row >= 0) return p.x[(sequence.row_begin + row) * p.ldx + g * p.group_stride + c];
      return from == nullptr ? 0.0f : from[(row + kept) * all + g * p.channels + c];
    };
    const auto store = [&](int64_t rows, int32_t slot) {
      float* to = p.states + slot * p.state_stride;
      for (int64_t j = 0; j < kept; ++j)
        for (int64_t g = 0; g < p.groups; ++g)
          for (int64_t c = 0; c < p.channels; ++c)
            to[j * all + g * p.channels + c] = input(rows - kept + j, g, c);
    };
    for (int64_t row = 0; row < sequence.rows; ++row) {
      float* y = p.y + (sequence.row_begin + row) * p.ldy;
      for (int64_t g = 0; g < p.groups; ++g) {
        for (int64_t c = 0; c < p.channels; ++c) {
          double sum = p.bias == nullptr ? 0.0 : double{p.bias[g * p.channels + c]};
          for (int64_t j = 0; j < p.width; ++j)
            sum += double{p.weight[j * all + g * p.channels + c]} * input(row - kept + j, g, c);
          y[g * p.channels + c] = static_cast<float>(Silu(sum));
        }
      }
    }
    for (const StateSpan::Copy& copy : sequence.copies)
      if (copy.slot >= 0) store(copy.rows, copy.slot);
    store(sequence.rows, sequence.to);
  }
}

void GatedDelta(const GatedDeltaParams& p) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(p.key_dim));
  for (int64_t row = 0; row < p.m && IsDeltaRule(p.rule); ++row) {
    for (int64_t g = 0; g < p.key_heads; ++g) {
      Normalise(p.q + row * p.ld + g * p.q_stride, p.key_dim, scale);
      Normalise(p.k + row * p.ld + g * p.k_stride, p.key_dim, 1.0);
    }
  }
  const int64_t count = p.key_dim * p.value_dim;
  std::vector<float> s(static_cast<size_t>(count));
  for (const StateSpan& sequence : SpansOf(p)) {
    for (int64_t head = 0; head < p.value_heads; ++head) {
      const auto slot = [&](int32_t i) { return p.states + i * p.state_stride + head * count; };
      std::fill(s.begin(), s.end(), 0.0f);
      if (sequence.from >= 0) std::copy_n(slot(sequence.from), count, s.data());
      for (int64_t row = 0; row < sequence.rows; ++row) {
        Step(p, sequence.row_begin + row, head, s.data());
        for (const StateSpan::Copy& copy : sequence.copies)
          if (copy.slot >= 0 && copy.rows == row + 1)
            std::copy(s.begin(), s.end(), slot(copy.slot));
      }
      std::copy(s.begin(), s.end(), slot(sequence.to));
    }
  }
}

void GatedNorm(const GatedNormParams& p) {
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t head = 0; head < p.heads; ++head) {
      float* x = p.x + row * p.ldx + head * p.n;
      const float* weight = p.weight + head * p.weight_stride;
      const float* z = nullptr;
      if (p.gate != OutputGate::kNone)
        z = p.z + row * p.ldz + head / p.group * p.z_stride + head % p.group * p.n;
      std::vector<double> gated(x, x + p.n);
      for (int64_t i = 0; i < p.n && p.gate == OutputGate::kSiluBefore; ++i)
        gated[static_cast<size_t>(i)] *= Silu(z[i]);
      double sum = 0;
      for (const double value : gated) sum += value * value;
      const double factor = 1.0 / std::sqrt(sum / static_cast<double>(p.n) + p.eps);
      for (int64_t i = 0; i < p.n; ++i) {
        const double gate = p.gate == OutputGate::kSilu      ? Silu(z[i])
                            : p.gate == OutputGate::kSigmoid ? Sigmoid(z[i])
                                                             : 1.0;
        x[i] = static_cast<float>(gated[static_cast<size_t>(i)] * factor * weight[i] * gate);
      }
    }
  }
}

}  // namespace switchyard::kernels::reference
