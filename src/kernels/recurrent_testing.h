// A recurrent layer with random inputs, for tests of its ops on any device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/recurrent.h"
#include "kernels/testing.h"

namespace switchyard::kernels {

// Copies of arrays that live as long as this object, in the memory of a device; null: of the host.
class ArrayCopies {
 public:
  explicit ArrayCopies(Device* device) : device_(device) {}

  template <typename T>
  T* Of(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    if (device_) {
      kept_.push_back(device_->Allocate(bytes));
      device_->CopyIn(kept_.back().get(), values.data(), bytes);
    } else {
      auto host = std::make_shared<std::vector<std::byte>>(bytes + 1);
      if (bytes > 0) std::memcpy(host->data(), values.data(), bytes);
      kept_.emplace_back(host, host->data());
    }
    return static_cast<T*>(kept_.back().get());
  }
  template <typename T>
  void Read(const T* from, std::vector<T>& to) const {
    const size_t bytes = to.size() * sizeof(T);
    if (device_) return device_->CopyOut(to.data(), from, bytes);
    if (bytes > 0) std::memcpy(to.data(), from, bytes);
  }

 private:
  Device* const device_;
  std::vector<std::shared_ptr<void>> kept_;
};

// A layer with random weights, its inputs for `rows` rows, and the memory of eight slots. Heads
// have `spare` unused floats after them, so that rows are unaligned unless it is a multiple of 4.
struct RecurrentLayer {
  struct Sizes {
    int64_t rows = 0, key_dim = 1, value_dim = 1, width = 4, spare = 3;
    StateRule rule = StateRule::kDelta;
  };

  RecurrentLayer(Random& random, const Sizes& sizes)
      : rule(sizes.rule),
        rows(sizes.rows),
        key_heads(random.Pick({1, 3})),
        group(random.Pick({1, 2})),
        key_dim(sizes.key_dim),
        value_dim(sizes.value_dim),
        width(sizes.width),
        channels(2 * key_dim + group * value_dim),
        head_floats(channels + group * value_dim + sizes.spare),
        conv_floats((width - 1) * key_heads * channels),
        slot_floats(conv_floats + key_heads * group * key_dim * value_dim),
        decays(rule == StateRule::kKeyDelta ? key_dim : 1),
        gate_floats(group * (1 + decays)),
        x(random.Normal(rows * key_heads * head_floats)),
        gates(random.Normal(rows * key_heads * gate_floats)),
        conv(random.Normal(width * key_heads * channels, 0.5f)),
        rate(random.Normal(key_heads * group)),
        bias(random.Normal(key_heads * group * decays)),
        norm(random.Normal(sums() ? key_heads * group * value_dim : value_dim)) {
    if (rule == StateRule::kMamba2) {
      conv_bias = random.Normal(key_heads * channels);
      skip = random.Normal(key_heads * group);
    }
    for (float& r : rate) r = -std::exp(r);
    if (rule == StateRule::kKeyDelta) bound = random.Pick({0.0f, -5.0f});
    gate = rule == StateRule::kFixed      ? random.Pick({OutputGate::kNone, OutputGate::kSigmoid})
           : rule == StateRule::kMamba2   ? OutputGate::kSiluBefore
           : rule == StateRule::kKeyDelta ? OutputGate::kSigmoid
                                          : OutputGate::kSilu;
  }

  // Runs the ops of `device`, or `ops` with host memory if it is null, on the rows of `spans`,
  // which are adjacent. Returns the outputs of all rows.
  std::vector<float> Run(RecurrentOps& ops, std::span<const StateSpan> spans,
                         std::vector<float>& states, Device* device = nullptr) const {
    const int64_t first = spans.front().row_begin;
    const int64_t m = spans.back().row_begin + spans.back().rows - first;
    std::vector<StateSpan> own(spans.begin(), spans.end());
    for (StateSpan& span : own) span.row_begin -= static_cast<int32_t>(first);
    ArrayCopies copies(device);
    const Arrays arrays = Place(copies, first, m);
    float* const on_device = copies.Of(states);
    Start(ops, arrays, copies.Of(own), std::ssize(own), m, on_device);
    std::vector<float> out(m * key_heads * group * value_dim);
    copies.Read(arrays.out, out);
    copies.Read(on_device, states);
    return out;
  }

  // The arrays of a call for rows [first, first + m).
  struct Arrays {
    const float *input, *ba, *conv, *conv_bias, *rate, *bias, *skip, *norm;
    float *y, *scratch, *out, *chunks;
  };
  Arrays Place(ArrayCopies& copies, int64_t first, int64_t m) const {
    const auto zeros = [&](int64_t count) { return copies.Of(std::vector<float>(count)); };
    return {.input = copies.Of(x) + first * key_heads * head_floats,
            .ba = copies.Of(gates) + first * key_heads * gate_floats,
            .conv = copies.Of(conv),
            .conv_bias = conv_bias.empty() ? nullptr : copies.Of(conv_bias),
            .rate = copies.Of(rate),
            .bias = rule == StateRule::kFixed ? nullptr : copies.Of(bias),
            .skip = skip.empty() ? nullptr : copies.Of(skip),
            .norm = copies.Of(norm),
            .y = zeros(m * key_heads * channels),
            .scratch = zeros(m * key_heads * gate_floats),
            .out = zeros(m * key_heads * group * value_dim),
            .chunks = zeros(chunked ? m * key_heads * group * kDeltaChunkFloats : 0)};
  }

  // Starts the ops. `spans` [count] and `states` are in the same memory as the arrays.
  void Start(RecurrentOps& ops, const Arrays& a, const StateSpan* spans, int64_t count, int64_t m,
             float* states) const {
    const int64_t values = key_heads * group * value_dim;
    ops.ShortConv({.x = a.input,
                   .ldx = key_heads * head_floats,
                   .group_stride = head_floats,
                   .groups = key_heads,
                   .channels = channels,
                   .width = width,
                   .weight = a.conv,
                   .bias = a.conv_bias,
                   .states = states,
                   .state_stride = slot_floats,
                   .sequences = spans,
                   .num_sequences = count,
                   .m = m,
                   .y = a.y,
                   .ldy = key_heads * channels});
    ops.GatedDelta({.q = a.y,
                    .k = a.y + key_dim,
                    .v = a.y + 2 * key_dim,
                    .ld = key_heads * channels,
                    .q_stride = channels,
                    .k_stride = channels,
                    .v_stride = channels,
                    .a = rule == StateRule::kFixed ? nullptr : a.ba + group,
                    .b = sums() ? nullptr : a.ba,
                    .ld_gates = key_heads * gate_floats,
                    .a_stride = gate_floats,
                    .b_stride = gate_floats,
                    .rate = a.rate,
                    .bias = a.bias,
                    .rule = rule,
                    .skip = a.skip,
                    .min_step = 0.3f,
                    .bound = bound,
                    .key_heads = key_heads,
                    .value_heads = key_heads * group,
                    .key_dim = key_dim,
                    .value_dim = value_dim,
                    .states = states + conv_floats,
                    .state_stride = slot_floats,
                    .sequences = spans,
                    .num_sequences = count,
                    .m = m,
                    .gates = a.scratch,
                    .out = a.out,
                    .ldo = values,
                    .chunked = chunked,
                    .chunk_scratch = a.chunks});
    const int64_t of_group = sums() ? 1 : group, n = sums() ? group * value_dim : value_dim;
    ops.GatedNorm({.x = a.out,
                   .ldx = values,
                   .weight = a.norm,
                   .weight_stride = sums() ? n : 0,
                   .z = gate == OutputGate::kNone ? nullptr : a.input + channels,
                   .ldz = key_heads * head_floats,
                   .z_stride = head_floats,
                   .group = of_group,
                   .gate = gate,
                   .m = m,
                   .heads = key_heads * of_group,
                   .n = n,
                   // Small rows of the other rules have larger errors, which the norm enlarges.
                   .eps = rule == StateRule::kDelta ? 1e-6f : 1e-2f});
  }

  std::vector<float> Slot(const std::vector<float>& states, int64_t slot) const {
    return {states.begin() + slot * slot_floats, states.begin() + (slot + 1) * slot_floats};
  }
  std::vector<float> States() const { return std::vector<float>(8 * slot_floats, 1e30f); }
  // Eight rows of a new sequence, with the state after row i in slot i, as passes with drafts write
  // them.
  static StateSpan EachRow() {
    StateSpan span{.rows = 8, .to = 7};
    for (int32_t i = 0; i < 7; ++i) span.copies[i] = {.rows = i + 1, .slot = i};
    return span;
  }

  // Whether rows are added to the state without the delta rule. Then the heads of a key head are
  // normed together.
  bool sums() const { return !IsDeltaRule(rule); }

  StateRule rule;
  int64_t rows, key_heads, group, key_dim, value_dim, width, channels, head_floats, conv_floats,
      slot_floats, decays, gate_floats;
  std::vector<float> x, gates, conv, rate, bias, norm;
  OutputGate gate = OutputGate::kSilu;
  float bound = 0.0f;                  // with kKeyDelta: in half of the layers less
  bool chunked = false;                // whether spans may have chunked rows
  std::vector<float> conv_bias, skip;  // with kMamba2
};

class ReferenceRecurrentOps final : public RecurrentOps {
 public:
  bool ChunksRows(int64_t) const override { return false; }
  void ShortConv(const ShortConvParams& p) override { reference::ShortConv(p); }
  void GatedDelta(const GatedDeltaParams& p) override { reference::GatedDelta(p); }
  void GatedNorm(const GatedNormParams& p) override { reference::GatedNorm(p); }
};

inline void ExpectNear(const std::vector<float>& got, const std::vector<float>& want,
                       double tolerance = 2e-5) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << i;
}

}  // namespace switchyard::kernels
