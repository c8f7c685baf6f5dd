#include "train/layers/decoder_layer.h"

#include <utility>

#include "core/check.h"
#include "train/layers/pointwise.h"

namespace switchyard::train {

template <typename T>
DecoderLayer<T>::DecoderLayer(const AttentionParts<T>& parts, bool moe, const LayerRanks& ranks,
                              const BackwardOptions& backward)
    : hidden_(parts.config.hidden),
      norm_{.n = hidden_, .ldx = hidden_, .eps = static_cast<T>(parts.config.norm_eps)},
      ranks_(ranks),
      tp_(ranks.tp),
      recompute_(backward.recompute),
      separate_weights_(backward.separate_weights) {
  CHECK(!separate_weights_ || recompute_ == Recompute::kNone);
  const std::string& prefix = parts.prefix;
  const auto norm = [&](const std::string& name) {
    return parts.parameters.Add(prefix + name + ".weight", {hidden_});
  };
  input_norm_ = norm(parts.names.input_norm);
  attention_ = MakeAttention(parts);
  post_norm_ = norm(parts.names.post_attention_norm);
  if (moe) {
    moe_.emplace(parts.config, parts.names, prefix, ranks.experts, tp_, parts.parameters, backward);
  } else {
    const std::string mlp = prefix + parts.names.mlp + ".";
    dense_.push_back(FeedForward<T>::Make(parts.parameters, mlp + "gate_proj", mlp + "up_proj",
                                          mlp + "down_proj", hidden_, parts.config.intermediate,
                                          false, tp_));
  }
}

template <typename T>
bool DecoderLayer<T>::Borrows(Phase phase, bool forward) const {
  switch (recompute_) {
    case Recompute::kNone:
      return false;
    case Recompute::kMoe:
      return moe_ && phase == (forward ? Phase::kDispatch : Phase::kFinish);
    case Recompute::kAttention:
      return phase == Phase::kAttention;
    case Recompute::kLayer:
      return phase == (forward ? Phase::kAttention : Phase::kFinish);
  }
  return false;
}

template <typename T>
bool DecoderLayer<T>::Returns(Phase phase, bool forward) const {
  switch (recompute_) {
    case Recompute::kNone:
      return false;
    case Recompute::kMoe:
      return moe_ && phase == (forward ? Phase::kFinish : Phase::kAttention);
    case Recompute::kAttention:
      return phase == Phase::kAttention;
    case Recompute::kLayer:
      return phase == (forward ? Phase::kFinish : Phase::kAttention);
  }
  return false;
}

template <typename T>
void DecoderLayer<T>::SwapDropped(LayerState<T>& a, LayerState<T>& b) const {
  using State = LayerState<T>;
  if (DropsAttention(recompute_)) {
    a.normed.swap(b.normed);
    a.all_normed.swap(b.all_normed);
    std::swap(a.attention, b.attention);
  }
  if (DropsExperts(recompute_) && moe_) moe_->SwapDropped(a.moe, b.moe);
  if (recompute_ != Recompute::kLayer) return;
  for (const auto member :
       {&State::after, &State::after_normed, &State::dense_output, &State::all_after_normed}) {
    (a.*member).swap(b.*member);
  }
  std::swap(a.dense, b.dense);
}

template <typename T>
void DecoderLayer<T>::Borrow(LayerPass<T> p) const {
  CHECK(p.state.borrowed == nullptr);
  p.state.borrowed = p.spares.Take();
  SwapDropped(p.state, *p.state.borrowed);
}

template <typename T>
void DecoderLayer<T>::Return(LayerPass<T> p) const {
  SwapDropped(p.state, *p.state.borrowed);
  p.spares.Give(std::move(p.state.borrowed));
}

template <typename T>
ActivationCounts DecoderLayer<T>::Count(int64_t all, bool balances, const ThreadPool& pool) const {
  const int64_t m = tp_.Mine(all).size(), mine = m * hidden_;
  const int64_t gathered = tp_.alone() ? 0 : all * hidden_;
  ActivationCounts counts;
  if (moe_) counts = moe_->Count(m, all, balances, pool);
  counts.attention = mine + gathered + attention_->StateElements(all);
  counts.rest = 3 * mine;  // after, after_normed, dense_output
  if (!moe_) counts.dense = gathered + StateElements<T>(dense_, all, pool);
  counts.kept += mine;  // x
  if (separate_weights_) {
    counts.kept += attention_->HeldElements(all) + all * hidden_ + mine;
    if (!moe_) counts.kept += all * (hidden_ + dense_[0].gate.n);
  }
  const auto keep = [&](int64_t ActivationCounts::*part) {
    counts.kept += counts.*part;
    counts.*part = 0;
  };
  if (!DropsAttention(recompute_)) keep(&ActivationCounts::attention);
  if (!DropsExperts(recompute_)) keep(&ActivationCounts::experts);
  if (recompute_ != Recompute::kLayer) keep(&ActivationCounts::rest);
  if (recompute_ != Recompute::kLayer) keep(&ActivationCounts::dense);
  return counts;
}

template <typename T>
const T* DecoderLayer<T>::NormInput(LayerPass<T> p) const {
  LayerState<T>& s = p.state;
  const int64_t all = p.rows.rows();
  NormShape<T> norm = norm_;
  norm.m = tp_.Mine(all).size();
  s.normed.resize(norm.m * hidden_);
  RmsNorm(norm, s.x.data(), input_norm_->value.data(), s.normed.data(), p.pool);
  return tp_.Gather(s.normed.data(), all, hidden_, &s.all_normed);
}

template <typename T>
void DecoderLayer<T>::RunAttention(LayerPass<T> p) const {
  LayerState<T>& s = p.state;
  const int64_t all = p.rows.rows(), m = tp_.Mine(all).size();
  NormShape<T> norm = norm_;
  norm.m = m;
  for (auto* v : {&s.after, &s.after_normed}) v->resize(m * hidden_);
  const T* normed = NormInput(p);
  PartialRows<T> after(tp_, s.after.data(), all, hidden_);
  attention_->Forward(p.rows, normed, &s.attention, after.data(), p.pool);
  after.Scatter();
  Add(s.after.data(), s.x.data(), m * hidden_, p.pool);
  RmsNorm(norm, s.after.data(), post_norm_->value.data(), s.after_normed.data(), p.pool);
}

template <typename T>
void DecoderLayer<T>::Attend(const LossOptions& options, double step_tokens, LayerPass<T> p,
                             Losses* losses) {
  LayerState<T>& s = p.state;
  const int64_t m = tp_.Mine(p.rows.rows()).size();
  s.x = p.stream;
  RunAttention(p);
  p.stream = s.after;
  if (!moe_) return;
  moe_->Route(s.after_normed.data(), m, &s.moe, p.pool);
  if (!options.balance.any()) return;
  losses->balance += moe_->router().AddBalance(options.balance, p.rows, step_tokens, ranks_.sum,
                                               tp_, &s.moe.router);
}

template <typename T>
void DecoderLayer<T>::Forward(Phase phase, const LossOptions& options, double step_tokens,
                              LayerPass<T> p, Losses* losses) {
  if (Borrows(phase, /*forward=*/true)) Borrow(p);
  ForwardPhase(phase, options, step_tokens, p, losses);
  if (Returns(phase, /*forward=*/true)) Return(p);
}

template <typename T>
void DecoderLayer<T>::Backward(Phase phase, LayerPass<T> p) {
  if (Borrows(phase, /*forward=*/false)) Borrow(p);
  BackwardPhase(phase, p);
  if (Returns(phase, /*forward=*/false)) Return(p);
}

template <typename T>
void DecoderLayer<T>::ForwardPhase(Phase phase, const LossOptions& options, double step_tokens,
                                   LayerPass<T> p, Losses* losses) {
  LayerState<T>& s = p.state;
  const int64_t all = p.rows.rows(), m = tp_.Mine(all).size();
  if (phase == Phase::kAttention) return Attend(options, step_tokens, p, losses);
  if (!moe_) {
    if (phase != Phase::kExperts) return;
    s.dense_output.resize(m * hidden_);
    const int32_t offsets[] = {0, static_cast<int32_t>(all)};
    const T* x = tp_.Gather(s.after_normed.data(), all, hidden_, &s.all_after_normed);
    PartialRows<T> out(tp_, s.dense_output.data(), all, hidden_);
    train::Forward<T>(dense_, offsets, x, &s.dense, out.data(), p.pool);
    out.Scatter();
    Add(p.stream.data(), s.dense_output.data(), m * hidden_, p.pool);
    return;
  }
  switch (phase) {
    case Phase::kAttention:
    case Phase::kQkv:  // kQkv, kRoute and kDown are phases of serving only
    case Phase::kRoute:
    case Phase::kDown:
      break;
    case Phase::kDispatch:
      moe_->BeginDispatch(s.after_normed.data(), &s.moe, p.pool);
      break;
    case Phase::kShared:
      moe_->SharedForward(s.after_normed.data(), all, &s.moe, p.pool);
      break;
    case Phase::kExperts:
      moe_->EndDispatch(&s.moe, p.pool);
      moe_->RunExperts(&s.moe, p.pool);
      break;
    case Phase::kCombine:
      moe_->BeginCombine(&s.moe, p.pool);
      break;
    case Phase::kFinish:
      moe_->EndCombine(m, &s.moe, p.stream.data(), p.pool);
      break;
  }
}

template <typename T>
void DecoderLayer<T>::BackwardPhase(Phase phase, LayerPass<T> p) {
  LayerState<T>& s = p.state;
  const int64_t all = p.rows.rows(), m = tp_.Mine(all).size();
  LaterWeights<T>* const later = Later(p);
  if (phase == Phase::kAttention) return AttendBackward(p);
  if (phase == Phase::kFinish && recompute_ == Recompute::kLayer) return RunAttention(p);
  if (!moe_) {
    if (phase != Phase::kExperts) return;
    s.dense_output.resize(m * hidden_);
    const int32_t offsets[] = {0, static_cast<int32_t>(all)};
    const T* x = tp_.alone() ? s.after_normed.data() : s.all_after_normed.data();
    if (recompute_ == Recompute::kLayer) {
      x = tp_.Gather(s.after_normed.data(), all, hidden_, &s.all_after_normed);
      train::Forward<T>(dense_, offsets, x, &s.dense, nullptr, p.pool);
    }
    const GatheredRows<T> dout(tp_, p.stream.data(), all, hidden_);
    PartialRows<T> dx(tp_, s.dense_output.data(), all, hidden_);
    const T* d = later != nullptr ? later->HoldCopy(dout.data(), all * hidden_) : dout.data();
    train::Backward<T>(dense_, offsets, x, &s.dense, d, dx.data(), false, p.pool, later);
    dx.Scatter();
    return;
  }
  switch (phase) {
    case Phase::kAttention:
    case Phase::kFinish:
    case Phase::kQkv:  // kQkv, kRoute and kDown are phases of serving only
    case Phase::kRoute:
    case Phase::kDown:
      break;
    case Phase::kCombine:
      moe_->BeginCombineGradient(s.after_normed.data(), p.stream.data(), m, &s.moe, p.pool);
      break;
    case Phase::kShared:
      moe_->SharedBackward(s.after_normed.data(), p.stream.data(), all, &s.moe, p.pool, later);
      break;
    case Phase::kExperts:
      moe_->EndCombineGradient(&s.moe, p.pool);
      moe_->RunExpertsGradient(&s.moe, p.pool, later);
      break;
    case Phase::kDispatch:
      moe_->BeginDispatchGradient(&s.moe, p.pool);
      break;
  }
}

template <typename T>
void DecoderLayer<T>::AttendBackward(LayerPass<T> p) {
  LayerState<T>& s = p.state;
  const int64_t all = p.rows.rows(), m = tp_.Mine(all).size();
  if (moe_) {
    s.dense_output.resize(m * hidden_);
    moe_->EndDispatchGradient(s.after_normed.data(), m, &s.moe, s.dense_output.data(), p.pool);
  }
  NormShape<T> norm = norm_;
  norm.m = m;
  T* d = p.stream.data();
  RmsNormGradient(norm, s.after.data(), post_norm_->value.data(), s.dense_output.data(), d, true,
                  post_norm_->gradient_data(), p.pool);
  // after_normed is no longer needed, so its buffer is reused for the gradient of `normed`; unless
  // weight gradients read it later.
  LaterWeights<T>* const later = Later(p);
  T* const dnormed = later != nullptr ? later->Hold(m * hidden_) : s.after_normed.data();
  const T* x = tp_.alone() ? s.normed.data() : s.all_normed.data();
  if (recompute_ == Recompute::kAttention) {
    x = NormInput(p);
    attention_->Forward(p.rows, x, &s.attention, nullptr, p.pool);
  }
  const GatheredRows<T> dout(tp_, d, all, hidden_);
  const T* held = later != nullptr ? later->HoldCopy(dout.data(), all * hidden_) : dout.data();
  PartialRows<T> dx(tp_, dnormed, all, hidden_);
  attention_->Backward(p.rows, x, s.attention, held, dx.data(), p.pool, later);
  dx.Scatter();
  RmsNormGradient(norm, s.x.data(), input_norm_->value.data(), dnormed, d, true,
                  input_norm_->gradient_data(), p.pool);
}

template class DecoderLayer<float>;
template class DecoderLayer<double>;

}  // namespace switchyard::train
