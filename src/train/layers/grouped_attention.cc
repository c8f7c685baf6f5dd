#include <algorithm>

#include "train/layers/attention.h"
#include "train/layers/attention_layers.h"
#include "train/layers/pointwise.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

using QkNorm = AttentionConfig::QkNorm;

template <typename T>
class GroupedAttention : public AttentionLayer<T> {
 public:
  explicit GroupedAttention(const AttentionParts<T>& parts)
      : config_(parts.config.attention),
        heads_(parts.tp.Mine(config_.heads).size()),
        kv_heads_(parts.tp.Mine(config_.kv_heads).size()),
        rope_(parts.config.rope),
        eps_(parts.config.norm_eps),
        cos_sin_(parts.cos_sin),
        q_width_(heads_ * config_.head_dim),
        kv_width_(kv_heads_ * config_.head_dim),
        shape_{.heads = heads_,
               .kv_heads = kv_heads_,
               .qk_dim = config_.head_dim,
               .v_dim = config_.head_dim,
               .scale = static_cast<T>(config_.scale),
               .window = parts.window,
               .products = parts.parameters.products()} {
    const auto linear = [&](const std::string& name, int64_t n, int64_t k, const Cut& part) {
      return Linear<T>::Make(parts.parameters, parts.prefix + name, n, k, false, part);
    };
    const int64_t hidden = parts.config.hidden, dim = config_.head_dim;
    const Cut q = Cut::Outputs(parts.tp, config_.heads, dim);
    const Cut kv = Cut::Outputs(parts.tp, config_.kv_heads, dim);
    q_ = linear(parts.names.q, config_.heads * dim, hidden, q);
    k_ = linear(parts.names.k, config_.kv_heads * dim, hidden, kv);
    v_ = linear(parts.names.v, config_.kv_heads * dim, hidden, kv);
    o_ = linear(parts.names.o, hidden, config_.heads * dim,
                Cut::Inputs(parts.tp, config_.heads, dim));
    if (config_.qk_norm == QkNorm::kNone) return;
    const bool whole = config_.qk_norm == QkNorm::kWhole;
    const auto norm = [&](const std::string& name, int64_t width) {
      return parts.parameters.Add(parts.prefix + name + ".weight",
                                  {whole ? width : config_.head_dim});
    };
    q_norm_ = norm(parts.names.q_norm, q_width_);
    k_norm_ = norm(parts.names.k_norm, kv_width_);
  }

  void Forward(const RowLayout& rows, const T* x, AttentionState<T>* s, T* out,
               ThreadPool& pool) override {
    const int64_t m = rows.rows();
    for (auto* v : {&s->q, &s->attended}) v->resize(m * q_width_);
    for (auto* v : {&s->k, &s->v}) v->resize(m * kv_width_);
    s->log_sums.resize(m * heads_);
    const bool norm = q_norm_ != nullptr;
    if (norm) {
      s->q_raw.resize(m * q_width_);
      s->k_raw.resize(m * kv_width_);
    }
    const LinearUse<T> uses[] = {{&q_, norm ? s->q_raw.data() : s->q.data()},
                                 {&k_, norm ? s->k_raw.data() : s->k.data()},
                                 {&v_, s->v.data()}};
    ForwardAll<T>(uses, x, m, pool);
    if (norm) {
      RmsNorm(NormOf(q_norm_, m * q_width_), s->q_raw.data(), q_norm_->value.data(), s->q.data(),
              pool);
      RmsNorm(NormOf(k_norm_, m * kv_width_), s->k_raw.data(), k_norm_->value.data(), s->k.data(),
              pool);
    }
    Rope(RopeOf(rows, heads_), s->q.data(), false, pool);
    Rope(RopeOf(rows, kv_heads_), s->k.data(), false, pool);
    Attention<T>(shape_, rows, Heads<const T>(s->q, q_width_), Heads<const T>(s->k, kv_width_),
                 Heads<const T>(s->v, kv_width_), Heads<T>(s->attended, q_width_),
                 s->log_sums.data(), pool);
    if (out == nullptr) return;
    const LinearUse<T> output[] = {{&o_, out}};
    ForwardAll<T>(output, s->attended.data(), m, pool);
  }

  void Backward(const RowLayout& rows, const T* x, AttentionState<T>& s, const T* dout, T* dx,
                ThreadPool& pool, LaterWeights<T>* later) override {
    const int64_t m = rows.rows();
    ScratchBuffer<T> dattended(m * q_width_);
    OutputGradient<T> dq(m * q_width_, later), dk(m * kv_width_, later), dv(m * kv_width_, later);
    // The const_cast is safe, because BackwardAll only reads the gradients of outputs.
    const LinearUse<T> output[] = {{&o_, const_cast<T*>(dout)}};
    BackwardAll<T>(output, s.attended.data(), m, dattended.data(), false, pool, later);
    AttentionGradient<T>(shape_, rows, Heads<const T>(s.q, q_width_),
                         Heads<const T>(s.k, kv_width_), Heads<const T>(s.v, kv_width_),
                         Heads<const T>(s.attended, q_width_), s.log_sums.data(),
                         Heads<const T>(dattended, q_width_), Heads<T>(dq, q_width_),
                         Heads<T>(dk, kv_width_), Heads<T>(dv, kv_width_), pool);
    Rope(RopeOf(rows, heads_), dq.data(), true, pool);
    Rope(RopeOf(rows, kv_heads_), dk.data(), true, pool);
    if (q_norm_ != nullptr) {
      NormBackward(q_norm_, s.q_raw, dq, pool);
      NormBackward(k_norm_, s.k_raw, dk, pool);
    }
    const LinearUse<T> uses[] = {{&q_, dq.data()}, {&k_, dk.data()}, {&v_, dv.data()}};
    BackwardAll<T>(uses, x, m, dx, false, pool, later);
  }

  int64_t StateElements(int64_t m) const override {
    const int64_t raw = q_norm_ != nullptr ? q_width_ + kv_width_ : 0;
    return m * (2 * q_width_ + 2 * kv_width_ + heads_ + raw);
  }
  int64_t HeldElements(int64_t m) const override { return m * (q_width_ + 2 * kv_width_); }

 private:
  // Replaces d, the gradient of the norm's output, by the gradient of its input. dy is a copy of
  // the old d, which the weight gradient needs.
  void NormBackward(Parameter<T>* norm, const std::vector<T>& raw, OutputGradient<T>& d,
                    ThreadPool& pool) {
    const auto count = static_cast<int64_t>(raw.size());
    ScratchBuffer<T> dy(count);
    std::copy_n(d.data(), count, dy.data());
    RmsNormGradient(NormOf(norm, count), raw.data(), norm->value.data(), dy.data(), d.data(), false,
                    norm->gradient_data(), pool);
  }
  NormShape<T> NormOf(const Parameter<T>* norm, int64_t count) const {
    const int64_t n = norm->shape[0];
    return {.m = count / n, .n = n, .ldx = n, .eps = static_cast<T>(eps_)};
  }
  RopeShape<T> RopeOf(const RowLayout& rows, int64_t heads) const {
    return {.m = rows.rows(),
            .heads = heads,
            .row = heads * config_.head_dim,
            .head = config_.head_dim,
            .rotary_dim = rope_.rotary_dim,
            .interleaved = rope_.interleaved,
            .positions = rows.positions.data(),
            .cos_sin = cos_sin_};
  }
  template <typename U, typename V>
  HeadRows<U> Heads(V& v, int64_t width) const {
    return {v.data(), width, config_.head_dim};
  }

  const AttentionConfig config_;
  const int64_t heads_, kv_heads_;  // number of heads of this rank
  const RopeConfig rope_;
  const float eps_;
  const float* cos_sin_;
  const int64_t q_width_, kv_width_;
  const AttentionShape<T> shape_;
  Linear<T> q_, k_, v_, o_;
  Parameter<T>*q_norm_ = nullptr, *k_norm_ = nullptr;
};

}  // namespace

template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeGroupedAttention(const AttentionParts<T>& parts) {
  return std::make_unique<GroupedAttention<T>>(parts);
}

template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeAttention(const AttentionParts<T>& parts) {
  return parts.config.attention.kind == AttentionConfig::Kind::kLatent
             ? MakeLatentAttention(parts)
             : MakeGroupedAttention(parts);
}

template std::unique_ptr<AttentionLayer<float>> MakeGroupedAttention(const AttentionParts<float>&);
template std::unique_ptr<AttentionLayer<double>> MakeGroupedAttention(
    const AttentionParts<double>&);
template std::unique_ptr<AttentionLayer<float>> MakeAttention(const AttentionParts<float>&);
template std::unique_ptr<AttentionLayer<double>> MakeAttention(const AttentionParts<double>&);

}  // namespace switchyard::train
