// Recurrent layers on a thread pool.
#include "kernels/recurrent.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>

#include "core/check.h"
#include "kernels/cpu/driver.h"

namespace switchyard::kernels {
namespace {

using cpu::KernelTable;

template <typename Params>
std::span<const StateSpan> SpansOf(const Params& p) {
  return {p.sequences, static_cast<size_t>(p.num_sequences)};
}

// The rows of inputs of a sequence, including those that its state holds.
class ConvInputs {
 public:
  ConvInputs(const ShortConvParams& p, const StateSpan& sequence, const float* zeros)
      : p_(p),
        x_(p.x + sequence.row_begin * p.ldx),
        from_(sequence.from < 0 ? nullptr : p.states + sequence.from * p.state_stride),
        zeros_(zeros) {}

  // The channels of a group, `row` rows after the beginning of the span; at least 1 − width.
  const float* At(int64_t row, int64_t group) const {
    if (row >= 0) return x_ + row * p_.ldx + group * p_.group_stride;
    if (from_ == nullptr) return zeros_;
    return from_ + (row + p_.width - 1) * p_.groups * p_.channels + group * p_.channels;
  }

 private:
  const ShortConvParams& p_;
  const float* const x_;
  const float* const from_;  // null: zeros
  const float* const zeros_;
};

void StoreInputs(const ShortConvParams& p, const ConvInputs& inputs, int64_t rows, int32_t slot) {
  float* to = p.states + slot * p.state_stride;
  for (int64_t j = 0; j + 1 < p.width; ++j)
    for (int64_t g = 0; g < p.groups; ++g, to += p.channels)
      std::copy_n(inputs.At(rows - p.width + 1 + j, g), p.channels, to);
}

float SoftPlus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// The decays and the step of one row of a value head.
void WriteGates(const GatedDeltaParams& p, const KernelTable& kernels, int64_t row, int64_t head) {
  if (p.rule == StateRule::kFixed) {
    float* gates = p.gates + (row * p.value_heads + head) * 2;
    gates[0] = std::exp(p.rate[head]);
    gates[1] = 1.0f;
    return;
  }
  const int64_t group = p.value_heads / p.key_heads, g = head / group, i = head % group;
  const int64_t n = p.decays();
  const float* a = p.a + row * p.ld_gates + g * p.a_stride + i * n;
  const float* bias = p.bias + head * n;
  float* gates = p.gates + (row * p.value_heads + head) * (n + 1);
  if (p.rule == StateRule::kMamba2) {
    gates[1] = std::max(SoftPlus(a[0] + bias[0]), p.min_step);
    gates[0] = std::exp(p.rate[head] * gates[1]);
    return;
  }
  if (p.rule == StateRule::kKeyDelta) {
    kernels.key_decays(a, bias, p.rate[head], p.bound, gates, n);
  } else {
    gates[0] = std::exp(p.rate[head] * SoftPlus(a[0] + bias[0]));
  }
  const float b = p.b[row * p.ld_gates + g * p.b_stride + i];
  gates[n] = 1.0f / (1.0f + std::exp(-b));
}

// q and k divided by their norms if the rule requires it, and the gates of rows [begin, end).
// `weights` [2, key_dim]: the constant factors of q, then of k, for the kernel that norms a row.
void Prepare(const GatedDeltaParams& p, const KernelTable& kernels, const float* weights,
             int64_t begin, int64_t end) {
  const float eps = kDeltaNormEps / static_cast<float>(p.key_dim);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t g = 0; g < p.key_heads && IsDeltaRule(p.rule); ++g) {
      float* q = p.q + row * p.ld + g * p.q_stride;
      float* k = p.k + row * p.ld + g * p.k_stride;
      kernels.rms_norm(q, weights, q, p.key_dim, eps);
      kernels.rms_norm(k, weights + p.key_dim, k, p.key_dim, eps);
    }
    for (int64_t head = 0; head < p.value_heads; ++head) WriteGates(p, kernels, row, head);
  }
}

// A block of columns of one head of one sequence.
void RunDelta(const GatedDeltaParams& p, const KernelTable& kernels, const StateSpan& sequence,
              int64_t head, int64_t column) {
  const int64_t group = p.value_heads / p.key_heads, g = head / group, i = head % group;
  const int64_t row = sequence.row_begin;
  const auto slot = [&](int32_t index) {
    return index < 0 ? nullptr
                     : p.states + index * p.state_stride + head * p.key_dim * p.value_dim + column;
  };
  const int64_t gates = p.decays() + 1;
  cpu::DeltaTask task{.rule = p.rule,
                      .q = p.q + row * p.ld + g * p.q_stride,
                      .k = p.k + row * p.ld + g * p.k_stride,
                      .v = p.v + row * p.ld + g * p.v_stride + i * p.value_dim + column,
                      .ld = p.ld,
                      .gates = p.gates + (row * p.value_heads + head) * gates,
                      .gates_ld = gates * p.value_heads,
                      .skip = p.rule == StateRule::kMamba2 ? p.skip[head] : 0.0f,
                      .rows = sequence.rows,
                      .from = slot(sequence.from),
                      .to = slot(sequence.to),
                      .stride = p.value_dim,
                      .copy_rows = {},
                      .copy_to = {},
                      .key_dim = p.key_dim,
                      .columns = std::min(kernels.delta_columns, p.value_dim - column),
                      .out = p.out + row * p.ldo + head * p.value_dim + column,
                      .ldo = p.ldo,
                      .scratch = cpu::ThreadScratch(p.key_dim * kernels.delta_columns)};
  for (size_t copy = 0; copy < std::size(sequence.copies); ++copy) {
    task.copy_rows[copy] = sequence.copies[copy].rows;
    task.copy_to[copy] = slot(sequence.copies[copy].slot);
  }
  kernels.delta(task);
}

class CpuRecurrentOps final : public RecurrentOps {
 public:
  explicit CpuRecurrentOps(ThreadPool& pool) : pool_(pool) {}

  bool ChunksRows(int64_t) const override { return false; }

  void ShortConv(const ShortConvParams& p) override {
    CHECK(p.width >= 1 && p.width <= kMaxConvWidth);
    const KernelTable* kernels = cpu::ActiveKernels();
    if (kernels == nullptr) return reference::ShortConv(p);
    const auto zero_bytes = p.channels * static_cast<int64_t>(sizeof(float));
    auto* const zeros = reinterpret_cast<float*>(cpu::OpScratch(zero_bytes));
    std::fill_n(zeros, p.channels, 0.0f);
    for (const StateSpan& sequence : SpansOf(p)) {
      CHECK(sequence.rows > 0 && sequence.to >= 0 && sequence.from != sequence.to);
      const ConvInputs inputs(p, sequence, zeros);
      cpu::RunRows(pool_, sequence.rows, p.groups * p.channels, [&](int64_t begin, int64_t end) {
        const float* rows[kMaxConvWidth];
        for (int64_t row = begin; row < end; ++row) {
          float* y = p.y + (sequence.row_begin + row) * p.ldy;
          for (int64_t g = 0; g < p.groups; ++g) {
            for (int64_t j = 0; j < p.width; ++j) rows[j] = inputs.At(row - p.width + 1 + j, g);
            kernels->short_conv(rows, p.weight + g * p.channels, p.groups * p.channels, p.width,
                                p.bias == nullptr ? nullptr : p.bias + g * p.channels,
                                y + g * p.channels, p.channels);
          }
        }
      });
      for (const StateSpan::Copy& copy : sequence.copies)
        if (copy.slot >= 0) StoreInputs(p, inputs, copy.rows, copy.slot);
      StoreInputs(p, inputs, sequence.rows, sequence.to);
    }
  }

  void GatedDelta(const GatedDeltaParams& p) override {
    const KernelTable* kernels = cpu::ActiveKernels();
    if (kernels == nullptr) return reference::GatedDelta(p);
    const auto bytes = 2 * p.key_dim * static_cast<int64_t>(sizeof(float));
    auto* const weights = reinterpret_cast<float*>(cpu::OpScratch(bytes));
    const float root = std::sqrt(static_cast<float>(p.key_dim));
    std::fill_n(weights, p.key_dim, 1.0f / static_cast<float>(p.key_dim));  // 1 / root, twice
    std::fill_n(weights + p.key_dim, p.key_dim, 1.0f / root);
    cpu::RunRows(pool_, p.m, 2 * p.key_heads * p.key_dim,
                 [&](int64_t begin, int64_t end) { Prepare(p, *kernels, weights, begin, end); });
    const int64_t blocks = (p.value_dim + kernels->delta_columns - 1) / kernels->delta_columns;
    const int64_t tasks = p.value_heads * blocks;  // of one sequence
    cpu::RunTasks(pool_, p.num_sequences * tasks, [&](int64_t task) {
      const int64_t block = task % tasks;
      RunDelta(p, *kernels, p.sequences[task / tasks], block / blocks,
               block % blocks * kernels->delta_columns);
    });
  }

  void GatedNorm(const GatedNormParams& p) override {
    const KernelTable* kernels = cpu::ActiveKernels();
    if (kernels == nullptr) return reference::GatedNorm(p);
    cpu::RunRows(pool_, p.m, p.heads * p.n, [&](int64_t begin, int64_t end) {
      float* gated = cpu::ThreadScratch(p.n);
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t head = 0; head < p.heads; ++head) {
          float* x = p.x + row * p.ldx + head * p.n;
          const float* weight = p.weight + head * p.weight_stride;
          if (p.gate == OutputGate::kNone) {
            kernels->rms_norm(x, weight, x, p.n, p.eps);
            continue;
          }
          const float* z = p.z + row * p.ldz + head / p.group * p.z_stride + head % p.group * p.n;
          if (p.gate == OutputGate::kSigmoid) {
            kernels->rms_norm(x, weight, x, p.n, p.eps);
            kernels->multiply_by_sigmoid(x, z, p.n);
            continue;
          }
          std::copy_n(z, p.n, gated);
          if (p.gate == OutputGate::kSiluBefore) {
            kernels->swiglu(gated, x, p.n);
            kernels->rms_norm(gated, weight, x, p.n, p.eps);
          } else {
            kernels->rms_norm(x, weight, x, p.n, p.eps);
            kernels->swiglu(gated, x, p.n);
            std::copy_n(gated, p.n, x);
          }
        }
      }
    });
  }

 private:
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<RecurrentOps> MakeCpuRecurrentOps(ThreadPool& pool) {
  return std::make_unique<CpuRecurrentOps>(pool);
}

}  // namespace switchyard::kernels
