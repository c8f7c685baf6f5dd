#include "train/device/plain_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/check.h"
#include "quant/fp8.h"
#include "train/batch.h"
#include "train/device/ops.h"
#include "train/device/plain_attention.h"
#include "train/device/plain_fp8.h"
#include "train/device/plain_router.h"
#include "train/parameter.h"

namespace switchyard::train {
namespace {

using plain::Dot;
using plain::kGrain;
using plain::Load;
using plain::Rounded;

template <typename C>
class PlainOps final : public TrainOps<C> {
 public:
  explicit PlainOps(ThreadPool& pool) : pool_(pool), device_(kernels::MakeCpuDevice(pool)) {}

  kernels::Device& device() override { return *device_; }

  void Zero(void* to, int64_t bytes) override { std::memset(to, 0, static_cast<size_t>(bytes)); }
  void Copy(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void Add(const float* x, float* y, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) y[i] += x[i];
  }
  void Round(const float* x, C* y, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) y[i] = Rounded<C>(x[i]);
  }
  void StoreColumns(int64_t m, int64_t n, const C* from, C* columns, int64_t row) override {
    for (int64_t t = 0; t < m; ++t) std::copy_n(from + t * n, n, columns + t * row);
  }
  void LoadColumns(int64_t m, int64_t n, const C* columns, int64_t row, float* to) override {
    for (int64_t i = 0; i < m * n; ++i) to[i] = Load(columns[i / n * row + i % n]);
  }

  void Project(const LinearShape& s, const C* x, const C* w, C* y) override {
    Forward(s, x, w, false, y);
  }
  void ProjectSum(const LinearShape& s, const C* x, const C* w, float* y,
                  bool accumulate) override {
    Forward(s, x, w, accumulate, y);
  }
  void InputGradient(const LinearShape& s, const C* dy, const C* w, C* dx) override {
    Backward(s, dy, w, false, dx);
  }
  void InputGradientSum(const LinearShape& s, const C* dy, const C* w, float* dx,
                        bool accumulate) override {
    Backward(s, dy, w, accumulate, dx);
  }
  void WeightGradient(const LinearShape& s, const C* dy, const C* x, float* dw) override {
    if (s.fp8 == nullptr) return WeightGradientOf(s, dy, x, dw);
    std::vector<int32_t> begins;
    for (int64_t g = 0; g <= s.groups; ++g) begins.push_back(static_cast<int32_t>(Begin(s, g)));
    const std::vector<float> rounded_dy = plain::RoundColumnsToFp8(dy, begins, s.n),
                             rounded_x = plain::RoundColumnsToFp8(x, begins, s.k);
    WeightGradientOf(s, rounded_dy.data(), rounded_x.data(), dw);
  }
  void QuantizeWeight(const LinearShape& s, const C* w) override { plain::QuantizeWeight(s, w); }
  void QuantizeRows(const C* x, int64_t m, int64_t width, uint8_t* codes, float* scales) override {
    plain::QuantizeRows(x, m * width, codes, scales);
  }
  void DecodeRows(const uint8_t* codes, const float* scales, int64_t m, int64_t width,
                  C* x) override {
    std::vector<float> decoded(static_cast<size_t>(m * width));
    DequantizeFp8Groups(codes, scales, m * width, decoded.data());
    std::ranges::transform(decoded, x, Rounded<C>);
  }

  void RouterProject(int64_t m, int64_t n, int64_t k, const C* x, const float* w,
                     float* logits) override {
    pool_.RunRanges(m, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * n; i < end * n; ++i)
        logits[i] = Dot(x + i / n * k, 1, w + i % n * k, 1, k);
    });
  }
  void RouterProductGradients(int64_t m, int64_t n, int64_t k, const float* dlogits, const C* x,
                              const float* w, float* dx, float* dw) override {
    pool_.RunRanges(m, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * k; i < end * k; ++i)
        dx[i] += Dot(dlogits + i / k * n, 1, w + i % k, k, n);
    });
    pool_.RunRanges(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * k; i < end * k; ++i)
        dw[i] += Dot(dlogits + i / k, n, x + i % k, k, m);
    });
  }

  void Embed(const int32_t* ids, int64_t m, const float* table, int64_t width,
             float* out) override {
    for (int64_t t = 0; t < m; ++t) std::copy_n(table + ids[t] * width, width, out + t * width);
  }
  void EmbedGradient(std::span<const int32_t> ids, const float* dout, int64_t width,
                     float* dtable) override {
    for (const int32_t id : ids) {
      for (int64_t i = 0; i < width; ++i) dtable[id * width + i] += dout[i];
      dout += width;
    }
  }
  void SelectRows(const C* x, const int32_t* ids, int64_t count, int64_t width, C* out) override {
    for (int64_t i = 0; i < count; ++i) std::copy_n(x + ids[i] * width, width, out + i * width);
  }

  void RmsNorm(const NormShape<float>& s, const float* x, const float* gain, C* y) override {
    Norm(s, x, gain, y);
  }
  void RmsNormGradient(const NormShape<float>& s, const float* x, const float* gain,
                       const float* dy, float* dx, bool accumulate, float* dgain) override {
    NormGradient(s, x, gain, dy, dx, accumulate, dgain);
  }
  void HeadNorm(const NormShape<float>& s, const C* x, const float* gain, C* y) override {
    Norm(s, x, gain, y);
  }
  void HeadNormGradient(const NormShape<float>& s, const C* x, const float* gain, const C* dy,
                        C* dx, float* dgain) override {
    NormGradient(s, x, gain, dy, dx, false, dgain);
  }
  void Rope(const RopeShape<float>& s, C* x, bool backward) override {
    const int64_t half = s.rotary_dim / 2;
    const int64_t step = s.interleaved ? 2 : 1, other = s.interleaved ? 1 : half;
    for (int64_t t = 0; t < s.m; ++t) {
      const float* cosines = s.cos_sin + s.positions[t] * s.rotary_dim;
      for (int64_t h = 0; h < s.heads; ++h) {
        C* p = x + t * s.row + h * s.head + s.offset;
        for (int64_t i = 0; i < half; ++i, p += step) {
          const float c = cosines[i], sine = backward ? -cosines[half + i] : cosines[half + i];
          const float a = Load(p[0]), b = Load(p[other]);
          p[0] = Rounded<C>(a * c - b * sine);
          p[other] = Rounded<C>(b * c + a * sine);
        }
      }
    }
  }

  void Attention(const AttentionShape<float>& s, const DeviceRows& rows, HeadRows<const C> q,
                 HeadRows<const C> k, HeadRows<const C> v, HeadRows<C> out,
                 float* log_sums) override {
    plain::Attention(s, rows, q, k, v, out, log_sums, pool_);
  }
  void AttentionGradient(const AttentionShape<float>& s, const DeviceRows& rows,
                         HeadRows<const C> q, HeadRows<const C> k, HeadRows<const C> v,
                         HeadRows<const C> out, const float* log_sums, HeadRows<const C> dout,
                         HeadRows<C> dq, HeadRows<C> dk, HeadRows<C> dv) override {
    plain::AttentionGradient(s, rows, q, k, v, out, log_sums, dout, dq, dk, dv, pool_);
  }

  void SwiGlu(const GateUpShape& s, const C* gate_up, C* out) override {
    for (int64_t i = 0; i < ValidRows(s) * s.n; ++i) {
      const C* at = gate_up + i / s.n * 2 * s.n + i % s.n;
      const float g = Load(at[0]);
      out[i] = Rounded<C>(g / (1.0f + std::exp(-g)) * Load(at[s.n]));
    }
  }
  void SwiGluGradient(const GateUpShape& s, const C* dout, C* gate_up) override {
    for (int64_t i = 0; i < ValidRows(s) * s.n; ++i) {
      C* at = gate_up + i / s.n * 2 * s.n + i % s.n;
      const float g = Load(at[0]), u = Load(at[s.n]), d = Load(dout[i]);
      const float sigmoid = 1.0f / (1.0f + std::exp(-g)), silu = g * sigmoid;
      at[0] = Rounded<C>(d * u * (sigmoid + silu * (1.0f - sigmoid)));
      at[s.n] = Rounded<C>(d * silu);
    }
  }

  void SelectExperts(const RouterConfig& config, const DeviceRouting& routing) override {
    TopK topk;
    switchyard::SelectExperts(config, routing.logits, routing.m, routing.bias, &topk, pool_);
    std::ranges::copy(topk.ids, routing.ids);
  }
  void GiveExperts(const RouterConfig& config, const DeviceRouting& routing, const int32_t* given,
                   int32_t* counts) override {
    plain::GiveExperts(config, routing, given, counts);
  }
  void RouteWeights(const RouterConfig& config, const DeviceRouting& routing) override {
    plain::RouteWeights(config, routing);
  }
  void CountTokens(const RouterConfig& config, const DeviceRouting& routing,
                   float* counts) override {
    plain::CountTokens(config, routing, counts);
  }
  void Balance(const RouterConfig& config, const DeviceRows& rows, const DeviceRouting& routing,
               const DeviceBalance& balance, float* losses) override {
    plain::Balance(config, rows, routing, balance, losses);
  }
  void RouteGradient(const RouterConfig& config, const DeviceRows& rows,
                     const DeviceRouting& routing, const DeviceBalance* balance,
                     const float* dweights, float* dlogits) override {
    plain::RouteGradient(config, rows, routing, balance, dweights, dlogits);
  }

  void SelectLocal(Range experts, int32_t* ids, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) {
      const bool here = experts.begin <= ids[i] && ids[i] < experts.end;
      ids[i] = here ? ids[i] - static_cast<int32_t>(experts.begin) : -1;
    }
  }
  void SortSlots(const RouterConfig& config, const int32_t* ids, const DeviceSlots& s,
                 int32_t* loads) override {
    const int64_t experts = config.num_experts;
    const int64_t count = s.m * s.k;
    std::fill_n(s.offsets, experts + 1, 0);
    for (int64_t slot = 0; slot < count; ++slot) {
      if (ids[slot] < 0) continue;
      ++s.offsets[ids[slot] + 1];
      ++loads[ids[slot]];
    }
    std::partial_sum(s.offsets, s.offsets + experts + 1, s.offsets);
    std::vector<int32_t> next(s.offsets, s.offsets + experts);
    for (int64_t slot = 0; slot < count; ++slot)
      s.place[slot] = ids[slot] >= 0 ? next[static_cast<size_t>(ids[slot])]++ : -1;
  }
  void GatherRows(const RouterConfig&, const DeviceSlots& s, const C* x, int64_t width,
                  C* out) override {
    ForSlots(s, [&](int64_t t, int64_t, int64_t at) {
      std::copy_n(x + t * width, width, out + at * width);
    });
  }
  void Combine(const RouterConfig&, const DeviceSlots& s, const C* results, const float* weights,
               int64_t width, bool accumulate, float* y) override {
    if (!accumulate) std::fill_n(y, s.m * width, 0.0f);
    ForSlots(s, [&](int64_t t, int64_t slot, int64_t at) {
      for (int64_t i = 0; i < width; ++i)
        y[t * width + i] += weights[slot] * Load(results[at * width + i]);
    });
  }
  void CombineGradient(const RouterConfig&, const DeviceSlots& s, const C* dy, const C* results,
                       const float* weights, int64_t width, C* dresults, float* dweights) override {
    std::fill_n(dweights, s.m * s.k, 0.0f);
    ForSlots(s, [&](int64_t t, int64_t slot, int64_t at) {
      const C* d = dy + t * width;
      dweights[slot] = Dot(d, 1, results + at * width, 1, width);
      for (int64_t i = 0; i < width; ++i)
        dresults[at * width + i] = Rounded<C>(weights[slot] * Load(d[i]));
    });
  }
  void ScatterRows(const DeviceSlots& s, const float* drows, int64_t width, bool accumulate,
                   float* dx) override {
    if (!accumulate) std::fill_n(dx, s.m * width, 0.0f);
    ForSlots(s, [&](int64_t t, int64_t, int64_t at) {
      for (int64_t i = 0; i < width; ++i) dx[t * width + i] += drows[at * width + i];
    });
  }

  void JoinKeys(const LatentKeyShape& s, const C* kv, const C* latent, C* k) override {
    for (int64_t i = 0; i < s.m * s.heads; ++i, k += s.nope + s.rope) {
      std::copy_n(kv + i * (s.nope + s.value), s.nope, k);
      std::copy_n(latent + i / s.heads * (s.lora + s.rope) + s.lora, s.rope, k + s.nope);
    }
  }
  void SplitKeys(const LatentKeyShape& s, const C* dk, C* dkv, C* dlatent) override {
    std::vector<float> sum(static_cast<size_t>(s.rope));
    for (int64_t t = 0; t < s.m; ++t) {
      std::ranges::fill(sum, 0.0f);
      for (int64_t h = 0; h < s.heads; ++h, dk += s.nope + s.rope, dkv += s.nope + s.value) {
        std::copy_n(dk, s.nope, dkv);
        for (int64_t i = 0; i < s.rope; ++i) sum[static_cast<size_t>(i)] += Load(dk[s.nope + i]);
      }
      C* shared = dlatent + t * (s.lora + s.rope) + s.lora;
      for (int64_t i = 0; i < s.rope; ++i) shared[i] = Rounded<C>(sum[static_cast<size_t>(i)]);
    }
  }

  void CrossEntropy(const float* logits, const int32_t* targets, int64_t rows, int64_t vocab,
                    float scale, C* dlogits, float* losses) override {
    pool_.RunRanges(rows, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const float* row = logits + t * vocab;
        const float log_sum = plain::LogSum(row, vocab);
        losses[t] = log_sum - row[targets[t]];
        if (dlogits == nullptr) continue;
        for (int64_t i = 0; i < vocab; ++i) {
          const float p = std::exp(row[i] - log_sum) - (i == targets[t] ? 1.0f : 0.0f);
          dlogits[t * vocab + i] = Rounded<C>(scale * p);
        }
      }
    });
  }

  void AdamW(const AdamWUpdate& u, int64_t count, float* value, float* gradient, float* first,
             float* second, C* copy) override {
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * u.gradient_scale;
      gradient[i] = 0;
      first[i] = u.beta1 * first[i] + u.one_minus_beta1 * g;
      second[i] = u.beta2 * second[i] + u.one_minus_beta2 * (g * g);
      const float size = std::sqrt(second[i]) * u.unbias2 + u.epsilon;
      value[i] = value[i] * u.keep - u.step * (first[i] / size);
      copy[i] = Rounded<C>(value[i]);
    }
  }
  void SquareSums(const float* x, int64_t count, double* sums) override {
    for (int64_t begin = 0; begin < count; begin += Shards::kBlock) {
      double sum = 0;
      for (int64_t i = begin; i < std::min(count, begin + Shards::kBlock); ++i)
        sum += static_cast<double>(x[i]) * x[i];
      sums[begin / Shards::kBlock] = sum;
    }
  }

 private:
  static int64_t ValidRows(const GateUpShape& s) {
    return s.valid_rows == nullptr ? s.m : *s.valid_rows;
  }
  template <typename Y>
  static void Store(float value, bool accumulate, Y* to) {
    *to = Rounded<Y>(accumulate ? Load(*to) + value : value);
  }
  static int64_t Begin(const LinearShape& s, int64_t group) {
    if (s.offsets == nullptr) return group == 0 ? 0 : s.rows;
    return s.offsets[group];
  }
  // body(group, row)
  template <typename Body>
  void ForRows(const LinearShape& s, const Body& body) {
    CHECK(s.groups == 1 || s.offsets != nullptr);
    CHECK_LE(Begin(s, s.groups), s.rows);
    pool_.RunRanges(Begin(s, s.groups), kGrain, [&](int64_t begin, int64_t end) {
      int64_t g = 0;
      for (int64_t t = begin; t < end; ++t) {
        while (Begin(s, g + 1) <= t) ++g;
        body(g, t);
      }
    });
  }
  template <typename Y>
  void Forward(const LinearShape& s, const C* x, const C* w, bool accumulate, Y* y) {
    if (s.fp8 == nullptr) return ForwardOf(s, x, w, accumulate, y);
    const std::vector<float> rounded = plain::RoundRowsToFp8(x, Begin(s, s.groups), s.k);
    ForwardOf(s, rounded.data(), plain::DecodeWeight(s).data(), accumulate, y);
  }
  template <typename Y>
  void Backward(const LinearShape& s, const C* dy, const C* w, bool accumulate, Y* dx) {
    if (s.fp8 == nullptr) return BackwardOf(s, dy, w, accumulate, dx);
    const std::vector<float> rounded = plain::RoundRowsToFp8(dy, Begin(s, s.groups), s.n);
    BackwardOf(s, rounded.data(), plain::DecodeWeight(s).data(), accumulate, dx);
  }
  // Products of operands as they are.
  template <typename X, typename Y>
  void ForwardOf(const LinearShape& s, const X* x, const X* w, bool accumulate, Y* y) {
    ForRows(s, [&](int64_t g, int64_t t) {
      for (int64_t j = 0; j < s.n; ++j)
        Store(Dot(x + t * s.k, 1, w + (g * s.n + j) * s.k, 1, s.k), accumulate, y + t * s.n + j);
    });
  }
  template <typename X, typename Y>
  void BackwardOf(const LinearShape& s, const X* dy, const X* w, bool accumulate, Y* dx) {
    ForRows(s, [&](int64_t g, int64_t t) {
      for (int64_t j = 0; j < s.k; ++j)
        Store(Dot(dy + t * s.n, 1, w + g * s.n * s.k + j, s.k, s.n), accumulate, dx + t * s.k + j);
    });
  }
  template <typename X>
  void WeightGradientOf(const LinearShape& s, const X* dy, const X* x, float* dw) {
    pool_.RunRanges(s.groups * s.n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t g = row / s.n, first = Begin(s, g), count = Begin(s, g + 1) - first;
        const X* d = dy + first * s.n + row % s.n;
        for (int64_t j = 0; j < s.k; ++j)
          dw[row * s.k + j] += Dot(d, s.n, x + first * s.k + j, s.k, count);
      }
    });
  }
  // body(token, slot, place), in slot order, for slots with an expert
  template <typename Body>
  void ForSlots(const DeviceSlots& s, const Body& body) {
    pool_.RunRanges(s.m, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin * s.k; slot < end * s.k; ++slot)
        if (s.place[slot] >= 0) body(slot / s.k, slot, s.place[slot]);
    });
  }
  template <typename X>
  static float InverseRoot(const NormShape<float>& s, const X* x) {
    return 1.0f / std::sqrt(Dot(x, 1, x, 1, s.n) / static_cast<float>(s.n) + s.eps);
  }
  template <typename X>
  void Norm(const NormShape<float>& s, const X* x, const float* gain, C* y) {
    for (int64_t t = 0; t < s.m; ++t) {
      const float root = InverseRoot(s, x + t * s.ldx);
      for (int64_t i = 0; i < s.n; ++i)
        y[t * s.n + i] = Rounded<C>(Load(x[t * s.ldx + i]) * root * gain[i]);
    }
  }
  template <typename X>
  void NormGradient(const NormShape<float>& s, const X* x, const float* gain, const X* dy, X* dx,
                    bool accumulate, float* dgain) {
    for (int64_t t = 0; t < s.m; ++t) {
      const X* in = x + t * s.ldx;
      const X* d = dy + t * s.n;
      X* out = dx + t * s.ldx;
      const float root = InverseRoot(s, in);
      float along = 0;
      for (int64_t i = 0; i < s.n; ++i) along += Load(d[i]) * gain[i] * Load(in[i]);
      const float back = along * root * root * root / static_cast<float>(s.n);
      for (int64_t i = 0; i < s.n; ++i) {
        const float value = Load(d[i]) * gain[i] * root - Load(in[i]) * back;
        out[i] = Rounded<X>(accumulate ? Load(out[i]) + value : value);
        dgain[i] += Load(d[i]) * Load(in[i]) * root;
      }
    }
  }

  ThreadPool& pool_;
  const std::unique_ptr<kernels::Device> device_;
};

}  // namespace

template <typename C>
std::unique_ptr<TrainOps<C>> MakePlainOps(ThreadPool& pool) {
  return std::make_unique<PlainOps<C>>(pool);
}
template std::unique_ptr<TrainOps<float>> MakePlainOps(ThreadPool&);
template std::unique_ptr<TrainOps<BF16>> MakePlainOps(ThreadPool&);

}  // namespace switchyard::train
