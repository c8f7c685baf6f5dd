#include "train/device/attention.h"

#include <string>
#include <utility>

#include "core/dtype.h"

namespace switchyard::train {
namespace {

using QkNorm = AttentionConfig::QkNorm;

// As in layers/latent_attention.cc.
constexpr float kLatentNormEps = 1e-6f;

template <typename C>
DeviceLinear<C> Place(const DeviceAttentionParts<C>& parts, const std::string& name, int64_t n,
                      int64_t k) {
  return {
      .weight = parts.on.parameters.Place(parts.prefix + name + ".weight", parts.on.Fp8Groups(1)),
      .n = n,
      .k = k};
}

template <typename C>
HeadRows<const C> ReadRows(const DeviceArray<C>& array, int64_t row, int64_t head,
                           int64_t offset = 0) {
  return {array.data() + offset, row, head};
}
template <typename C>
HeadRows<C> WriteRows(DeviceArray<C>& array, int64_t row, int64_t head, int64_t offset = 0) {
  return {array.data() + offset, row, head};
}

template <typename C>
class GroupedOnDevice final : public DeviceAttention<C> {
 public:
  explicit GroupedOnDevice(const DeviceAttentionParts<C>& parts)
      : on_(parts.on),
        heads_(parts.config.attention.heads),
        kv_heads_(parts.config.attention.kv_heads),
        dim_(parts.config.attention.head_dim),
        rope_(parts.config.rope),
        eps_(parts.config.norm_eps),
        cos_sin_(parts.cos_sin),
        shape_{.heads = heads_,
               .kv_heads = kv_heads_,
               .qk_dim = dim_,
               .v_dim = dim_,
               .scale = static_cast<float>(parts.config.attention.scale),
               .window = parts.window} {
    const int64_t hidden = parts.config.hidden;
    q_ = Place(parts, parts.names.q, heads_ * dim_, hidden);
    k_ = Place(parts, parts.names.k, kv_heads_ * dim_, hidden);
    v_ = Place(parts, parts.names.v, kv_heads_ * dim_, hidden);
    o_ = Place(parts, parts.names.o, hidden, heads_ * dim_);
    if (parts.config.attention.qk_norm == QkNorm::kNone) return;
    q_norm_ = on_.parameters.Place(parts.prefix + parts.names.q_norm + ".weight");
    k_norm_ = on_.parameters.Place(parts.prefix + parts.names.k_norm + ".weight");
  }

  void Project(const Range& part, int64_t m, const C* x, DeviceAttentionState<C>* s) override {
    q_.ForwardPart(on_, part, m, x, &s->q);
    k_.ForwardPart(on_, part, m, x, &s->k);
    v_.ForwardPart(on_, part, m, x, &s->v);
  }
  void Forward(const DeviceRows& rows, DeviceAttentionState<C>* s, float* out) override {
    const int64_t m = rows.m;
    s->q = Normed(std::move(s->q), q_norm_, &s->q_raw);
    s->k = Normed(std::move(s->k), k_norm_, &s->k_raw);
    on_.ops.Rope(RopeOf(rows, heads_), s->q.data(), false);
    on_.ops.Rope(RopeOf(rows, kv_heads_), s->k.data(), false);
    s->attended = on_.template Array<C>(m * q_.n);
    s->log_sums = on_.template Array<float>(m * heads_);
    on_.ops.Attention(shape_, rows, ReadRows(s->q, q_.n, dim_), ReadRows(s->k, k_.n, dim_),
                      ReadRows(s->v, k_.n, dim_), WriteRows(s->attended, q_.n, dim_),
                      s->log_sums.data());
    o_.ForwardSum(on_, m, s->attended.data(), out, true);
  }

  void Backward(const DeviceRows& rows, const C* x, DeviceAttentionState<C>& s, const C* dout,
                float* dx) override {
    const int64_t m = rows.m;
    const DeviceArray<C> dattended = o_.Backward(on_, m, s.attended.data(), dout);
    auto dq = on_.template Array<C>(m * q_.n), dk = on_.template Array<C>(m * k_.n),
         dv = on_.template Array<C>(m * k_.n);
    on_.ops.AttentionGradient(shape_, rows, ReadRows(s.q, q_.n, dim_), ReadRows(s.k, k_.n, dim_),
                              ReadRows(s.v, k_.n, dim_), ReadRows(s.attended, q_.n, dim_),
                              s.log_sums.data(), ReadRows(dattended, q_.n, dim_),
                              WriteRows(dq, q_.n, dim_), WriteRows(dk, k_.n, dim_),
                              WriteRows(dv, k_.n, dim_));
    on_.ops.Rope(RopeOf(rows, heads_), dq.data(), true);
    on_.ops.Rope(RopeOf(rows, kv_heads_), dk.data(), true);
    dq = NormBackward(q_norm_, s.q_raw, std::move(dq));
    dk = NormBackward(k_norm_, s.k_raw, std::move(dk));
    q_.BackwardSum(on_, m, x, dq.data(), dx, false);
    k_.BackwardSum(on_, m, x, dk.data(), dx, true);
    v_.BackwardSum(on_, m, x, dv.data(), dx, true);
  }

 private:
  NormShape<float> NormOf(const Slab& norm, int64_t count) const {
    return {.m = count / norm.count, .n = norm.count, .ldx = norm.count, .eps = eps_};
  }
  // The rows themselves without a norm. Else their norm; then the rows are stored in `raw`.
  DeviceArray<C> Normed(DeviceArray<C> rows, const Slab* norm, DeviceArray<C>* raw) {
    if (norm == nullptr) return rows;
    *raw = std::move(rows);
    auto y = on_.template Array<C>(raw->size());
    on_.ops.HeadNorm(NormOf(*norm, raw->size()), raw->data(), on_.parameters.value(*norm),
                     y.data());
    return y;
  }
  DeviceArray<C> NormBackward(const Slab* norm, const DeviceArray<C>& raw, DeviceArray<C> dy) {
    if (norm == nullptr) return dy;
    auto dx = on_.template Array<C>(dy.size());
    on_.ops.HeadNormGradient(NormOf(*norm, dy.size()), raw.data(), on_.parameters.value(*norm),
                             dy.data(), dx.data(), on_.parameters.gradient(*norm));
    return dx;
  }
  RopeShape<float> RopeOf(const DeviceRows& rows, int64_t heads) const {
    return {.m = rows.m,
            .heads = heads,
            .row = heads * dim_,
            .head = dim_,
            .rotary_dim = rope_.rotary_dim,
            .interleaved = rope_.interleaved,
            .positions = rows.positions,
            .cos_sin = cos_sin_};
  }

  const DeviceContext<C>& on_;
  const int64_t heads_, kv_heads_, dim_;
  const RopeConfig rope_;
  const float eps_;
  const float* cos_sin_;
  const AttentionShape<float> shape_;
  DeviceLinear<C> q_, k_, v_, o_;
  const Slab *q_norm_ = nullptr, *k_norm_ = nullptr;  // null: no norms
};

template <typename C>
class LatentOnDevice final : public DeviceAttention<C> {
 public:
  explicit LatentOnDevice(const DeviceAttentionParts<C>& parts)
      : on_(parts.on),
        interleaved_(parts.config.rope.interleaved),
        cos_sin_(parts.cos_sin),
        heads_(parts.config.attention.heads),
        nope_(parts.config.attention.qk_nope_head_dim),
        rope_(parts.config.attention.qk_rope_head_dim),
        qk_(nope_ + rope_),
        value_(parts.config.attention.v_head_dim),
        lora_(parts.config.attention.kv_lora_rank),
        shape_{.heads = heads_,
               .kv_heads = heads_,
               .qk_dim = qk_,
               .v_dim = value_,
               .scale = static_cast<float>(parts.config.attention.scale),
               .window = parts.window} {
    const TensorNames& names = parts.names;
    const int64_t hidden = parts.config.hidden, q_lora = parts.config.attention.q_lora_rank;
    const auto norm = [&](const std::string& name) {
      return on_.parameters.Place(parts.prefix + name + ".weight");
    };
    if (q_lora == 0) {
      q_ = Place(parts, names.q, heads_ * qk_, hidden);
    } else {
      q_a_ = Place(parts, names.q_a, q_lora, hidden);
      q_a_norm_ = norm(names.q_a_norm);
      q_ = Place(parts, names.q_b, heads_ * qk_, q_lora);
    }
    // Its width includes the rotary part of the keys, so it is not a multiple of 128.
    kv_a_ = {.weight = on_.parameters.Place(parts.prefix + names.kv_a + ".weight"),
             .n = lora_ + rope_,
             .k = hidden};
    kv_a_norm_ = norm(names.kv_a_norm);
    kv_b_ = Place(parts, names.kv_b, heads_ * (nope_ + value_), lora_);
    o_ = Place(parts, names.o, hidden, heads_ * value_);
  }

  void Project(const Range& part, int64_t m, const C* x, DeviceAttentionState<C>* s) override {
    if (q_a_norm_ == nullptr) {
      q_.ForwardPart(on_, part, m, x, &s->q);
    } else {
      q_a_.ForwardPart(on_, part, m, x, &s->q_a);
    }
    kv_a_.ForwardPart(on_, part, m, x, &s->latent);
  }
  void Forward(const DeviceRows& rows, DeviceAttentionState<C>* s, float* out) override {
    const int64_t m = rows.m;
    if (q_a_norm_ != nullptr) {
      s->q_a_normed = on_.template Array<C>(m * q_a_.n);
      on_.ops.HeadNorm(NormOf(m, q_a_.n, q_a_.n), s->q_a.data(), on_.parameters.value(*q_a_norm_),
                       s->q_a_normed.data());
      s->q = q_.Forward(on_, m, s->q_a_normed.data());
    }
    s->latent_normed = on_.template Array<C>(m * lora_);
    on_.ops.HeadNorm(NormOf(m, lora_, lora_ + rope_), s->latent.data(),
                     on_.parameters.value(*kv_a_norm_), s->latent_normed.data());
    s->kv = kv_b_.Forward(on_, m, s->latent_normed.data());
    s->k = on_.template Array<C>(m * heads_ * qk_);
    on_.ops.JoinKeys(Keys(m), s->kv.data(), s->latent.data(), s->k.data());
    on_.ops.Rope(RopeOf(rows), s->q.data(), false);
    on_.ops.Rope(RopeOf(rows), s->k.data(), false);
    s->attended = on_.template Array<C>(m * o_.k);
    s->log_sums = on_.template Array<float>(m * heads_);
    on_.ops.Attention(shape_, rows, ReadRows(s->q, q_.n, qk_), ReadRows(s->k, q_.n, qk_),
                      ReadRows(s->kv, kv_b_.n, nope_ + value_, nope_),
                      WriteRows(s->attended, o_.k, value_), s->log_sums.data());
    o_.ForwardSum(on_, m, s->attended.data(), out, true);
  }

  void Backward(const DeviceRows& rows, const C* x, DeviceAttentionState<C>& s, const C* dout,
                float* dx) override {
    const int64_t m = rows.m;
    const DeviceArray<C> dattended = o_.Backward(on_, m, s.attended.data(), dout);
    auto dq = on_.template Array<C>(m * q_.n), dk = on_.template Array<C>(m * q_.n),
         dkv = on_.template Array<C>(m * kv_b_.n), dlatent = on_.template Array<C>(m * kv_a_.n);
    on_.ops.AttentionGradient(
        shape_, rows, ReadRows(s.q, q_.n, qk_), ReadRows(s.k, q_.n, qk_),
        ReadRows(s.kv, kv_b_.n, nope_ + value_, nope_), ReadRows(s.attended, o_.k, value_),
        s.log_sums.data(), ReadRows(dattended, o_.k, value_), WriteRows(dq, q_.n, qk_),
        WriteRows(dk, q_.n, qk_), WriteRows(dkv, kv_b_.n, nope_ + value_, nope_));
    on_.ops.Rope(RopeOf(rows), dq.data(), true);
    on_.ops.Rope(RopeOf(rows), dk.data(), true);
    on_.ops.SplitKeys(Keys(m), dk.data(), dkv.data(), dlatent.data());

    const DeviceArray<C> dnormed = kv_b_.Backward(on_, m, s.latent_normed.data(), dkv.data());
    on_.ops.HeadNormGradient(NormOf(m, lora_, lora_ + rope_), s.latent.data(),
                             on_.parameters.value(*kv_a_norm_), dnormed.data(), dlatent.data(),
                             on_.parameters.gradient(*kv_a_norm_));
    kv_a_.BackwardSum(on_, m, x, dlatent.data(), dx, false);
    if (q_a_norm_ == nullptr) return q_.BackwardSum(on_, m, x, dq.data(), dx, true);
    const DeviceArray<C> dq_normed = q_.Backward(on_, m, s.q_a_normed.data(), dq.data());
    auto dq_a = on_.template Array<C>(m * q_a_.n);
    on_.ops.HeadNormGradient(NormOf(m, q_a_.n, q_a_.n), s.q_a.data(),
                             on_.parameters.value(*q_a_norm_), dq_normed.data(), dq_a.data(),
                             on_.parameters.gradient(*q_a_norm_));
    q_a_.BackwardSum(on_, m, x, dq_a.data(), dx, true);
  }

 private:
  static NormShape<float> NormOf(int64_t m, int64_t n, int64_t ld) {
    return {.m = m, .n = n, .ldx = ld, .eps = kLatentNormEps};
  }
  LatentKeyShape Keys(int64_t m) const {
    return {.m = m, .heads = heads_, .nope = nope_, .rope = rope_, .value = value_, .lora = lora_};
  }
  RopeShape<float> RopeOf(const DeviceRows& rows) const {
    return {.m = rows.m,
            .heads = heads_,
            .row = heads_ * qk_,
            .head = qk_,
            .rotary_dim = rope_,
            .offset = nope_,
            .interleaved = interleaved_,
            .positions = rows.positions,
            .cos_sin = cos_sin_};
  }

  const DeviceContext<C>& on_;
  const bool interleaved_;
  const float* cos_sin_;
  const int64_t heads_, nope_, rope_, qk_, value_, lora_;
  const AttentionShape<float> shape_;
  DeviceLinear<C> q_a_, q_, kv_a_, kv_b_, o_;
  const Slab *q_a_norm_ = nullptr, *kv_a_norm_ = nullptr;
};

}  // namespace

template <typename C>
std::unique_ptr<DeviceAttention<C>> MakeDeviceAttention(const DeviceAttentionParts<C>& parts) {
  if (parts.config.attention.kind == AttentionConfig::Kind::kLatent)
    return std::make_unique<LatentOnDevice<C>>(parts);
  return std::make_unique<GroupedOnDevice<C>>(parts);
}
template std::unique_ptr<DeviceAttention<float>> MakeDeviceAttention(
    const DeviceAttentionParts<float>&);
template std::unique_ptr<DeviceAttention<BF16>> MakeDeviceAttention(
    const DeviceAttentionParts<BF16>&);

}  // namespace switchyard::train
