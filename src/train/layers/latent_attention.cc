#include <algorithm>

#include "train/layers/attention.h"
#include "train/layers/attention_layers.h"
#include "train/layers/pointwise.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

// Epsilon of the norms inside MLA, independent of rms_norm_eps: as in
// model/layers/latent_attention.cc.
constexpr double kLatentNormEps = 1e-6;

template <typename T>
class LatentAttention : public AttentionLayer<T> {
 public:
  explicit LatentAttention(const AttentionParts<T>& parts)
      : config_(parts.config.attention),
        interleaved_(parts.config.rope.interleaved),
        cos_sin_(parts.cos_sin),
        nope_(config_.qk_nope_head_dim),
        rope_(config_.qk_rope_head_dim),
        qk_(nope_ + rope_),
        value_(config_.v_head_dim),
        lora_(config_.kv_lora_rank),
        heads_(parts.tp.Mine(config_.heads).size()),
        shape_{.heads = heads_,
               .kv_heads = heads_,
               .qk_dim = qk_,
               .v_dim = value_,
               .scale = static_cast<T>(config_.scale),
               .window = parts.window,
               .products = parts.parameters.products()} {
    const auto linear = [&](const std::string& name, int64_t n, int64_t k, const Cut& part = {}) {
      return Linear<T>::Make(parts.parameters, parts.prefix + name, n, k, false, part);
    };
    const auto norm = [&](const std::string& name, int64_t n) {
      return parts.parameters.Add(parts.prefix + name + ".weight", {n});
    };
    // Every rank computes the whole latents. But a rank has only the part of their gradient that
    // comes from its own heads.
    const int64_t hidden = parts.config.hidden, q_lora = config_.q_lora_rank;
    const int64_t all = config_.heads;
    const Cut q = Cut::Outputs(parts.tp, all, qk_);
    if (q_lora == 0) {
      q_ = linear(parts.names.q, all * qk_, hidden, q);
    } else {
      q_a_ = linear(parts.names.q_a, q_lora, hidden);
      q_a_norm_ = norm(parts.names.q_a_norm, q_lora);
      q_ = linear(parts.names.q_b, all * qk_, q_lora, q);
    }
    kv_a_ = linear(parts.names.kv_a, lora_ + rope_, hidden);
    kv_a_norm_ = norm(parts.names.kv_a_norm, lora_);
    kv_b_ = linear(parts.names.kv_b, all * (nope_ + value_), lora_,
                   Cut::Outputs(parts.tp, all, nope_ + value_));
    o_ = linear(parts.names.o, hidden, all * value_, Cut::Inputs(parts.tp, all, value_));
  }

  void Forward(const RowLayout& rows, const T* x, AttentionState<T>* s, T* out,
               ThreadPool& pool) override {
    const int64_t m = rows.rows();
    s->q.resize(m * heads_ * qk_);
    s->latent.resize(m * (lora_ + rope_));
    if (q_a_norm_ == nullptr) {
      const LinearUse<T> uses[] = {{&q_, s->q.data()}, {&kv_a_, s->latent.data()}};
      ForwardAll<T>(uses, x, m, pool);
    } else {
      s->q_a.resize(m * q_a_.n);
      s->q_a_normed.resize(m * q_a_.n);
      const LinearUse<T> uses[] = {{&q_a_, s->q_a.data()}, {&kv_a_, s->latent.data()}};
      ForwardAll<T>(uses, x, m, pool);
      RmsNorm(NormOf(m, q_a_.n, q_a_.n), s->q_a.data(), q_a_norm_->value.data(),
              s->q_a_normed.data(), pool);
      const LinearUse<T> up[] = {{&q_, s->q.data()}};
      ForwardAll<T>(up, s->q_a_normed.data(), m, pool);
    }
    s->latent_normed.resize(m * lora_);
    RmsNorm(NormOf(m, lora_, lora_ + rope_), s->latent.data(), kv_a_norm_->value.data(),
            s->latent_normed.data(), pool);
    s->kv.resize(m * kv_b_.n);
    const LinearUse<T> up[] = {{&kv_b_, s->kv.data()}};
    ForwardAll<T>(up, s->latent_normed.data(), m, pool);

    Rope(RopeOf(rows), s->q.data(), false, pool);
    MakeKeys(rows, s, pool);
    s->attended.resize(m * heads_ * value_);
    s->log_sums.resize(m * heads_);
    Attention<T>(shape_, rows, Queries<const T>(s->q), Queries<const T>(s->k),
                 Values<const T>(s->kv), Outputs<T>(s->attended), s->log_sums.data(), pool);
    if (out == nullptr) return;
    const LinearUse<T> output[] = {{&o_, out}};
    ForwardAll<T>(output, s->attended.data(), m, pool);
  }

  void Backward(const RowLayout& rows, const T* x, AttentionState<T>& s, const T* dout, T* dx,
                ThreadPool& pool, LaterWeights<T>* later) override {
    const int64_t m = rows.rows();
    ScratchBuffer<T> dattended(m * heads_ * value_), dk(m * heads_ * qk_), dnormed(m * lora_);
    OutputGradient<T> dq(m * heads_ * qk_, later), dkv(m * kv_b_.n, later),
        dlatent(m * (lora_ + rope_), later);
    const LinearUse<T> output[] = {{&o_, const_cast<T*>(dout)}};
    BackwardAll<T>(output, s.attended.data(), m, dattended.data(), false, pool, later);
    AttentionGradient<T>(shape_, rows, Queries<const T>(s.q), Queries<const T>(s.k),
                         Values<const T>(s.kv), Outputs<const T>(s.attended), s.log_sums.data(),
                         Outputs<const T>(dattended), Queries<T>(dq), Queries<T>(dk),
                         Values<T>(dkv), pool);
    Rope(RopeOf(rows), dq.data(), true, pool);
    TakeKeys(rows, dk, &dkv, &dlatent, pool);

    const LinearUse<T> up[] = {{&kv_b_, dkv.data()}};
    BackwardAll<T>(up, s.latent_normed.data(), m, dnormed.data(), false, pool, later);
    RmsNormGradient(NormOf(m, lora_, lora_ + rope_), s.latent.data(), kv_a_norm_->value.data(),
                    dnormed.data(), dlatent.data(), false, kv_a_norm_->gradient_data(), pool);
    if (q_a_norm_ == nullptr) {
      const LinearUse<T> uses[] = {{&q_, dq.data()}, {&kv_a_, dlatent.data()}};
      BackwardAll<T>(uses, x, m, dx, false, pool, later);
      return;
    }
    ScratchBuffer<T> dq_normed(m * q_a_.n);
    OutputGradient<T> dq_a(m * q_a_.n, later);
    const LinearUse<T> q_up[] = {{&q_, dq.data()}};
    BackwardAll<T>(q_up, s.q_a_normed.data(), m, dq_normed.data(), false, pool, later);
    RmsNormGradient(NormOf(m, q_a_.n, q_a_.n), s.q_a.data(), q_a_norm_->value.data(),
                    dq_normed.data(), dq_a.data(), false, q_a_norm_->gradient_data(), pool);
    const LinearUse<T> uses[] = {{&q_a_, dq_a.data()}, {&kv_a_, dlatent.data()}};
    BackwardAll<T>(uses, x, m, dx, false, pool, later);
  }

  int64_t StateElements(int64_t m) const override {
    const int64_t q_latents = q_a_norm_ != nullptr ? 2 * q_a_.n : 0;
    const int64_t latents = lora_ + rope_ + lora_;  // before and after the norm
    return m * (q_latents + latents + kv_b_.n + heads_ * (2 * qk_ + value_ + 1));
  }
  int64_t HeldElements(int64_t m) const override {
    const int64_t q_latent = q_a_norm_ != nullptr ? q_a_.n : 0;
    return m * (heads_ * qk_ + kv_b_.n + lora_ + rope_ + q_latent);
  }

 private:
  // Fills k [m, heads, nope + rope]: each head has its own part (nope), followed by the rotated
  // part (rope) that is the same for all heads.
  void MakeKeys(const RowLayout& rows, AttentionState<T>* s, ThreadPool& pool) {
    const int64_t m = rows.rows();
    s->k.resize(m * heads_ * qk_);
    pool.RunRanges(m, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* shared = s->latent.data() + t * (lora_ + rope_) + lora_;
        for (int64_t h = 0; h < heads_; ++h) {
          T* key = s->k.data() + (t * heads_ + h) * qk_;
          std::copy_n(s->kv.data() + (t * heads_ + h) * (nope_ + value_), nope_, key);
          std::copy_n(shared, rope_, key + nope_);
        }
      }
    });
    Rope(RopeOf(rows), s->k.data(), false, pool);
  }

  // The reverse of MakeKeys: each head's own part of dk goes into dkv. The shared parts, summed
  // over heads, go into dlatent.
  void TakeKeys(const RowLayout& rows, ScratchBuffer<T>& dk, OutputGradient<T>* dkv,
                OutputGradient<T>* dlatent, ThreadPool& pool) {
    Rope(RopeOf(rows), dk.data(), true, pool);
    pool.RunRanges(rows.rows(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* shared = dlatent->data() + t * (lora_ + rope_) + lora_;
        std::fill_n(shared, rope_, T{0});
        for (int64_t h = 0; h < heads_; ++h) {
          const T* key = dk.data() + (t * heads_ + h) * qk_;
          std::copy_n(key, nope_, dkv->data() + (t * heads_ + h) * (nope_ + value_));
          for (int64_t i = 0; i < rope_; ++i) shared[i] += key[nope_ + i];
        }
      }
    });
  }

  NormShape<T> NormOf(int64_t m, int64_t n, int64_t ld) const {
    return {.m = m, .n = n, .ldx = ld, .eps = static_cast<T>(kLatentNormEps)};
  }
  RopeShape<T> RopeOf(const RowLayout& rows) const {  // shape for tensors [m, heads, nope + rope]
    return {.m = rows.rows(),
            .heads = heads_,
            .row = heads_ * qk_,
            .head = qk_,
            .rotary_dim = rope_,
            .offset = nope_,
            .interleaved = interleaved_,
            .positions = rows.positions.data(),
            .cos_sin = cos_sin_};
  }
  template <typename U, typename V>
  HeadRows<U> Queries(V& v) const {
    return {v.data(), heads_ * qk_, qk_};
  }
  template <typename U, typename V>
  HeadRows<U> Values(V& v) const {
    return {v.data() + nope_, heads_ * (nope_ + value_), nope_ + value_};
  }
  template <typename U, typename V>
  HeadRows<U> Outputs(V& v) const {
    return {v.data(), heads_ * value_, value_};
  }

  const AttentionConfig config_;
  const bool interleaved_;
  const float* cos_sin_;
  const int64_t nope_, rope_, qk_, value_, lora_, heads_;  // heads_: number of heads of this rank
  const AttentionShape<T> shape_;
  Linear<T> q_a_, q_, kv_a_, kv_b_, o_;  // q_ is q_b_proj if the model has q_a_proj, else q_proj
  Parameter<T>*q_a_norm_ = nullptr, *kv_a_norm_ = nullptr;
};

}  // namespace

template <typename T>
std::unique_ptr<AttentionLayer<T>> MakeLatentAttention(const AttentionParts<T>& parts) {
  return std::make_unique<LatentAttention<T>>(parts);
}
template std::unique_ptr<AttentionLayer<float>> MakeLatentAttention(const AttentionParts<float>&);
template std::unique_ptr<AttentionLayer<double>> MakeLatentAttention(const AttentionParts<double>&);

}  // namespace switchyard::train
