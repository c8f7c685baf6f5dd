#include "moe/layer.h"

#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "moe/runtime.h"

namespace switchyard {

ExpertRange ExpertsOfRank(int num_experts, int ep, int ep_rank) {
  const Share share = EvenShare(num_experts, ep, ep_rank);
  return {static_cast<int>(share.begin), static_cast<int>(share.end)};
}

MoeLayer::MoeLayer(MoeLayerConfig config, MoeLayerWeights weights,
                   std::shared_ptr<MoeRuntime> runtime)
    : config_(std::move(config)), weights_(std::move(weights)), runtime_(std::move(runtime)) {
  CHECK_EQ(config_.hidden, runtime_->shape().hidden);
  CHECK_EQ(config_.router.num_experts, runtime_->shape().num_experts);
  CHECK_EQ(config_.router.top_k, runtime_->shape().top_k);
  CHECK_EQ(static_cast<int>(weights_.experts.size()),
           runtime_->permute_context().num_local_experts);
  for (const kernels::ExpertWeights& expert : weights_.experts)
    for (const WeightView* w : {&expert.gate, &expert.up, &expert.down})
      if (!runtime_->runner().Takes(w->format))
        throw Invalid("--moe-runner-backend {} does not compute with {} experts",
                      runtime_->options().runner_backend, Name(w->format));
}

void MoeLayer::Forward(const float* hidden, int64_t tokens, bool decode, float* out) const {
  MoeBatch& batch = runtime_->StartBatch(hidden, tokens, decode, out);
  while (batch.NextRound()) {
    Route(batch);
    Dispatch(batch);
    PrePermute(batch);
    RunExperts(batch);
    PostPermute(batch);
    Combine(batch);
  }
}

void MoeLayer::Route(MoeBatch& batch) const {
  const int experts = config_.router.num_experts;
  const int64_t tokens = batch.own.size();
  float* logits = batch.logits.Get(tokens * experts);
  if (tokens > 0)
    kernels::Linear({.x = batch.own_hidden(),
                     .ldx = config_.hidden,
                     .w = weights_.router.w,
                     .bias = weights_.router.bias,
                     .y = logits,
                     .ldy = experts,
                     .m = tokens},
                    runtime_->pool());
  SelectExperts(config_.router, logits, tokens, weights_.router.correction_bias, &batch.topk,
                runtime_->pool());
}

void MoeLayer::Dispatch(MoeBatch& batch) const {
  Dispatcher& dispatcher = runtime_->dispatcher();
  dispatcher.BeginDispatch(batch.own_hidden(), batch.topk, batch.decode, &batch.handle);
  batch.dispatched = dispatcher.EndDispatch(&batch.handle);
}

void MoeLayer::PrePermute(MoeBatch& batch) const {
  runtime_->permute(batch.dispatched.layout)
      .pre(runtime_->permute_context(), batch.dispatched, &batch.grouped);
}

void MoeLayer::RunExperts(MoeBatch& batch) const {
  float* y = batch.outputs.Get(batch.grouped.num_rows() * config_.hidden);
  runtime_->runner().Run({.experts = weights_.experts,
                          .activation = config_.activation,
                          .alpha = config_.swiglu_alpha,
                          .limit = config_.swiglu_limit},
                         batch.grouped, config_.hidden, runtime_->pool(), y);
}

void MoeLayer::PostPermute(MoeBatch& batch) const {
  batch.expert_rows =
      runtime_->permute(batch.dispatched.layout).post(batch.grouped, batch.outputs.data());
}

// Sums the outputs, adds the shared expert, and gives every rank all tokens again.
void MoeLayer::Combine(MoeBatch& batch) const {
  Dispatcher& dispatcher = runtime_->dispatcher();
  RankComm& comm = runtime_->comm();
  dispatcher.BeginCombine(batch.expert_rows, &batch.handle);
  dispatcher.EndCombine(&batch.handle, batch.own_out());

  const size_t own_count = batch.own.size() * config_.hidden;
  if (!dispatcher.scatters()) {
    // Each rank has the part of its experts and of its slices, of the shared expert too.
    AddShared(batch);
    comm.tp->AllReduceSum(batch.own_out(), own_count);
    return;
  }
  // Each rank has its tokens: from slices of the experts, which the MoE-TP group adds up, and from
  // the whole shared expert, which every one of that group computes alike and counts once.
  comm.moe_tp->AllReduceSum(batch.own_out(), own_count);
  AddShared(batch);
  batch.part_bytes.resize(batch.parts);
  for (int part = 0; part < batch.parts; ++part)
    batch.part_bytes[part] =
        EvenShare(batch.round.size(), batch.parts, part).size() * config_.hidden * sizeof(float);
  comm.ep->AllGatherV(batch.own_out(), batch.round_out(), batch.part_bytes);
}

void MoeLayer::AddShared(MoeBatch& batch) const {
  if (!weights_.has_shared) return;
  AddSharedExpert(config_, weights_, batch.own_hidden(), batch.own.size(), &batch.shared,
                  runtime_->pool(), batch.own_out());
}

}  // namespace switchyard
