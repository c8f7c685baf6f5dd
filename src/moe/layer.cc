#include "moe/layer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "moe/physical_choice.h"
#include "moe/runtime.h"

namespace switchyard {
namespace {

void Call(const std::function<void()>& hook) {
  if (hook) hook();
}

}  // namespace

MoeLayer::MoeLayer(MoeLayerConfig config, MoeLayerWeights weights,
                   std::shared_ptr<MoeRuntime> runtime)
    : config_(std::move(config)), weights_(std::move(weights)), runtime_(std::move(runtime)) {
  const MoeShape& shape = runtime_->shape();
  const MoeOptions& options = runtime_->options();
  const Mesh& mesh = runtime_->comm().mesh;
  CHECK_EQ(config_.hidden, shape.hidden);
  CHECK_EQ(config_.router.num_experts, shape.num_experts);
  CHECK_EQ(config_.router.top_k, shape.top_k);
  if (config_.placement.num_logical() == 0)
    config_.placement = ExpertPlacement::Trivial(shape.num_experts, options.num_redundant_experts);
  CHECK_EQ(config_.placement.num_physical(), shape.num_experts + options.num_redundant_experts);
  expert_owners_.resize(weights_.experts.size());
  if (runtime_->shared_dispatched()) {
    CHECK(weights_.has_shared);
    if (weights_.shared.gate.n != shape.intermediate)
      throw Invalid(
          "--enable-deepep-waterfill dispatches rows to the shared expert like to a routed one, "
          "but it has {} intermediate elements and routed experts have {}",
          weights_.shared.gate.n, shape.intermediate);
    weights_.experts.push_back(weights_.shared);
  }
  CHECK_EQ(static_cast<int>(weights_.experts.size()),
           runtime_->experts().LocalExperts(mesh.ep_rank()));
  for (const kernels::ExpertWeights& expert : weights_.experts) CheckFormats(expert);
  ApplyPlacement();
}

void MoeLayer::CheckFormats(const kernels::ExpertWeights& expert) const {
  for (const WeightView* w : {&expert.gate, &expert.up, &expert.down})
    if (!runtime_->Supports(w->format))
      throw Invalid("--moe-runner-backend {} does not support {} experts",
                    runtime_->options().runner_backend, Name(w->format));
}

void MoeLayer::ApplyPlacement() {
  const Mesh& mesh = runtime_->comm().mesh;
  replicas_.clear();
  if (!config_.placement.is_identity())
    replicas_ = runtime_->scatters() ? config_.placement.ReplicasFor(mesh.ep(), mesh.ep_rank(),
                                                                     runtime_->options().nodes)
                                     : config_.placement.CommonReplicas();
  if (runtime_->observer()) runtime_->observer()->OnPlacement(config_.layer, config_.placement);
  if (runtime_->chooser()) runtime_->chooser()->OnPlacement(config_.layer, config_.placement);
}

std::vector<OwnedExpert> MoeLayer::SwitchPlacement(ExpertPlacement placement,
                                                   std::vector<OwnedExpert> experts) {
  CHECK_EQ(placement.num_logical(), config_.placement.num_logical());
  CHECK_EQ(placement.num_physical(), config_.placement.num_physical());
  CHECK_EQ(experts.size(), expert_owners_.size());
  config_.placement = std::move(placement);
  // A dispatched shared expert stays in its place after the routed ones.
  for (size_t i = 0; i < experts.size(); ++i) {
    std::swap(weights_.experts[i], experts[i].weights);
    std::swap(expert_owners_[i], experts[i].owner);
  }
  ApplyPlacement();
  return experts;
}

void MoeLayer::Forward(const float* hidden, const MoeTokens& tokens, float* out,
                       const MoeHooks& hooks) const {
  const Mesh& mesh = runtime_->comm().mesh;
  const auto groups = tokens.group_tokens, decoding = tokens.group_decode_tokens;
  CHECK_EQ(static_cast<int>(groups.size()), mesh.dp());
  CHECK_EQ(groups.size(), decoding.size());
  for (size_t g = 0; g < groups.size(); ++g) CHECK_LE(decoding[g], groups[g]);
  MoeBatch& batch = runtime_->batch();
  const auto run = [&](std::span<const int64_t> counts, int64_t first, bool decode) {
    if (std::ranges::all_of(counts, [](int64_t n) { return n == 0; })) return;
    runtime_->StartBatch(hidden + first * config_.hidden, counts, decode,
                         out + first * config_.hidden, &batch);
    batch.routed_experts =
        tokens.routed_experts ? tokens.routed_experts + first * config_.router.top_k : nullptr;
    batch.router_faults = tokens.router_faults.From(first);
    batch.first_row = first;
    RunBatch(batch, hooks);
  };

  if (std::ranges::equal(groups, decoding)) return run(groups, 0, /*decode=*/true);
  if (!runtime_->splits_mixed_batches()) return run(groups, 0, /*decode=*/false);
  run(decoding, 0, /*decode=*/true);
  std::vector<int64_t>& others = batch.group_scratch;
  others.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) others[g] = groups[g] - decoding[g];
  run(others, decoding[mesh.dp_rank()], /*decode=*/false);
}

MoeLayer::InputBuffer MoeLayer::InputRows(const MoeTokens& tokens) const {
  const auto groups = tokens.group_tokens, decoding = tokens.group_decode_tokens;
  const bool decode = std::ranges::equal(groups, decoding);
  if (runtime_->fused() || (!decode && runtime_->splits_mixed_batches() &&
                            std::ranges::any_of(decoding, [](int64_t n) { return n > 0; })))
    return {};
  if (std::ranges::all_of(groups, [](int64_t n) { return n == 0; })) return {};
  MoeBatch& batch = runtime_->batch();
  runtime_->StartBatch(nullptr, groups, decode, nullptr, &batch);
  if (batch.rounds != 1 || (batch.partition && !batch.partition->lane_is_local())) return {};
  const int64_t begin = batch.partition ? batch.partition->lane_begin() : 0;
  std::byte* rows = runtime_->dispatcher().InputRows(batch.lane_tokens, decode, &batch.handle);
  batch.rows_staged = rows != nullptr;
  return {rows, runtime_->exchange().row_format, {begin, begin + batch.lane_tokens}};
}

void MoeLayer::RunBatch(MoeBatch& batch, const MoeHooks& hooks) const {
  Gather(batch);
  while (batch.NextRound()) {
    if (runtime_->fused()) {
      RunRoundFused(batch, hooks);
    } else {
      RunRound(batch, hooks);
    }
  }
  Scatter(batch);
}

void MoeLayer::RunRound(MoeBatch& batch, const MoeHooks& hooks) const {
  Route(batch);
  Call(hooks.before_dispatch);
  BeginDispatch(batch);
  Call(hooks.during_dispatch);
  EndDispatch(batch);
  Call(hooks.after_dispatch);
  PrePermute(batch);
  RunExperts(batch);
  PostPermute(batch);
  if (!batch.ends_combine()) return BeginCombine(batch);
  Call(hooks.before_combine);
  BeginCombine(batch);
  Call(hooks.during_combine);
  EndCombine(batch);
  Call(hooks.after_combine);
}

// A fused operator has no separate stages: the hooks of later stages run once it has begun.
void MoeLayer::RunRoundFused(MoeBatch& batch, const MoeHooks& hooks) const {
  Route(batch);
  Call(hooks.before_dispatch);
  runtime_->fused()->Begin(batch.round_x(), *batch.topk, batch.decode, &batch.handle);
  Call(hooks.during_dispatch);
  if (batch.rounds_done == 1) ComputeShared(batch);
  Call(hooks.after_dispatch);
  Call(hooks.before_combine);
  Call(hooks.during_combine);
  runtime_->fused()->End(Block(), &batch.handle, batch.round_y());
  Call(hooks.after_combine);
}

ExpertBlock MoeLayer::Block() const {
  return {.experts = weights_.experts,
          .activation = config_.activation,
          .alpha = config_.swiglu_alpha,
          .limit = config_.swiglu_limit};
}

void MoeLayer::Gather(MoeBatch& batch) const {
  const int64_t hidden = config_.hidden;
  const Mesh& mesh = runtime_->comm().mesh;
  if (!batch.partition) {
    batch.x = batch.hidden;
    batch.y = batch.out;
    return;
  }
  const TokenPartition& partition = *batch.partition;
  const Share own = partition.own(mesh.rank());
  batch.y = mesh.moe_tp() == 1 ? batch.out + own.begin * hidden
                               : batch.lane_sums.Get(batch.lane_tokens * hidden);
  if (partition.lane_is_local()) {
    batch.x = batch.hidden + partition.lane_begin() * hidden;
    return;
  }
  batch.part_sizes.resize(mesh.moe_tp());
  for (int i = 0; i < mesh.moe_tp(); ++i)
    batch.part_sizes[i] =
        partition.own(mesh.ep_rank() * mesh.moe_tp() + i).size() * hidden * sizeof(float);
  float* gathered = batch.gathered.Get(batch.lane_tokens * hidden);
  runtime_->comm().moe_tp->AllGatherV(batch.hidden + own.begin * hidden, gathered,
                                      batch.part_sizes);
  batch.x = gathered;
}

// Runs before the router reads the rows, so that memory is read once.
void MoeLayer::StageInputRows(MoeBatch& batch) const {
  if (runtime_->fused() || std::exchange(batch.rows_staged, false)) return;
  const int64_t tokens = batch.round.size(), hidden = config_.hidden;
  const RowFormat format = runtime_->exchange().row_format;
  const int64_t row_bytes = format.Bytes(hidden);
  std::byte* rows = runtime_->dispatcher().InputRows(tokens, batch.decode, &batch.handle);
  if (rows == nullptr) return;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      StoreRow(format, batch.round_x() + t * hidden, hidden, rows + t * row_bytes);
  };
  runtime_->pool().RunRanges(tokens, kRowGrain, std::cref(body));
}

void MoeLayer::Route(MoeBatch& batch) const {
  StageInputRows(batch);
  const int experts = config_.router.num_experts;
  const int64_t tokens = batch.round.size();
  float* logits = batch.logits.Get(tokens * experts);
  if (tokens > 0)
    kernels::Linear({.x = batch.round_x(),
                     .ldx = config_.hidden,
                     .w = weights_.router.w,
                     .bias = weights_.router.bias,
                     .y = logits,
                     .ldy = experts,
                     .m = tokens},
                    runtime_->pool());
  SelectExperts(config_.router, logits, tokens, weights_.router.correction_bias, &batch.logical,
                runtime_->pool());
  StoreRouterFaults(batch);
  StoreRoutedExperts(batch);
  MapToPhysical(batch);
  if (runtime_->observer()) ReportRouting(batch);
}

OwnTokens MoeLayer::OwnOf(const MoeBatch& batch) const {
  if (!batch.partition) return OwnInRound({0, batch.lane_tokens}, 0, batch.round);
  return OwnInRound(batch.partition->own(runtime_->comm().mesh.rank()),
                    batch.partition->own_in_lane(), batch.round);
}

void MoeLayer::StoreRouterFaults(MoeBatch& batch) const {
  const auto& [records, index] = batch.router_faults;
  if (!records) return;
  const OwnTokens own = OwnOf(batch);
  for (int64_t i = 0; i < own.in_round.size(); ++i) {
    const int32_t expert = batch.logical.bad_experts[own.in_round.begin + i];
    if (expert < 0) continue;
    int32_t& record = records[index[own.in_group + i]];
    if (record == 0) record = FaultOf(config_.layer, expert);
  }
}

// Each rank writes its own tokens; Scatter all-gathers them over the attention group.
void MoeLayer::StoreRoutedExperts(MoeBatch& batch) const {
  if (!batch.routed_experts) return;
  const int k = config_.router.top_k;
  const OwnTokens own = OwnOf(batch);
  std::copy_n(batch.logical.ids.data() + own.in_round.begin * k, own.in_round.size() * k,
              batch.routed_experts + own.in_group * k);
}

// If all ranks route all tokens, each reports an even share of them.
void MoeLayer::ReportRouting(const MoeBatch& batch) const {
  const Mesh& mesh = runtime_->comm().mesh;
  Share own = EvenShare(batch.lane_tokens, mesh.world(), mesh.rank());  // range in the lane
  int64_t begin = own.begin;                                            // offset in the group
  if (batch.partition) {
    const Share share = batch.partition->own(mesh.rank());
    own = {batch.partition->own_in_lane(), batch.partition->own_in_lane() + share.size()};
    begin = share.begin;
  }
  const int64_t first = std::max(own.begin, batch.round.begin);
  const int64_t count = std::max<int64_t>(0, std::min(own.end, batch.round.end) - first);
  const auto rows = [&](const TopK& topk) {
    return count == 0
               ? std::span<const int32_t>()
               : std::span(topk.ids).subspan((first - batch.round.begin) * topk.k, count * topk.k);
  };
  runtime_->observer()->OnRoute(
      config_.layer, {.first_row = count == 0 ? 0 : batch.first_row + begin + first - own.begin,
                      .tokens = count,
                      .logical = rows(batch.logical),
                      .physical = rows(*batch.topk)});
}

void MoeLayer::MapToPhysical(MoeBatch& batch) const {
  batch.topk = &batch.logical;
  ReplicaChooser* chooser = runtime_->chooser();
  if (replicas_.empty() && !chooser && !runtime_->shared_dispatched()) return;
  batch.topk = &batch.physical;
  if (chooser) {
    chooser->Choose(config_.layer, batch.logical, &batch.physical);
  } else if (replicas_.empty()) {
    batch.physical = batch.logical;
  } else {
    ToPhysical(replicas_, batch.logical, &batch.physical);
  }
  if (!runtime_->shared_dispatched()) return;
  const Mesh& mesh = runtime_->comm().mesh;
  const float* gates = SharedGates(config_, weights_, batch.round_x(), batch.round.size(),
                                   &batch.shared, runtime_->pool());
  AppendSharedSlots(runtime_->experts(), mesh.ep(), mesh.ep_rank(), runtime_->active_ranks(), gates,
                    &batch.physical);
}

void MoeLayer::BeginDispatch(MoeBatch& batch) const {
  runtime_->dispatcher().BeginDispatch(batch.round_x(), *batch.topk, batch.decode, &batch.handle);
}

// The shared expert needs the own rows only: it computes while dispatch is in flight.
void MoeLayer::EndDispatch(MoeBatch& batch) const {
  if (batch.rounds_done == 1) ComputeShared(batch);
  batch.dispatched = runtime_->dispatcher().EndDispatch(&batch.handle);
}

void MoeLayer::PrePermute(MoeBatch& batch) const {
  runtime_->permute(batch.dispatched.layout)
      .pre(runtime_->permute_context(), batch.dispatched, &batch.grouped);
  if (RoutingObserver* observer = runtime_->observer(); observer && observer->wants_dispatch())
    observer->OnDispatch(config_.layer, batch.grouped);
}

void MoeLayer::RunExperts(MoeBatch& batch) const {
  const ExpertRows none_yet =
      runtime_->permute(batch.dispatched.layout).post(batch.grouped, nullptr);
  const auto places = runtime_->dispatcher().OutputDestinations(none_yet, &batch.handle);
  batch.outputs_written = !places.empty();
  if (batch.outputs_written)
    return runtime_->runner().RunTo(Block(), batch.grouped, config_.hidden, runtime_->pool(),
                                    runtime_->exchange().output_dtype, places);
  float* y = batch.outputs.Get(batch.grouped.num_rows * config_.hidden);
  runtime_->runner().Run(Block(), batch.grouped, config_.hidden, runtime_->pool(), y);
}

void MoeLayer::PostPermute(MoeBatch& batch) const {
  batch.expert_rows =
      runtime_->permute(batch.dispatched.layout)
          .post(batch.grouped, batch.outputs_written ? nullptr : batch.outputs.data());
  runtime_->dispatcher().PrepareCombine(batch.expert_rows, &batch.handle);
}

void MoeLayer::BeginCombine(MoeBatch& batch) const {
  runtime_->dispatcher().BeginCombine(batch.expert_rows, &batch.handle);
}

void MoeLayer::EndCombine(MoeBatch& batch) const {
  if (!batch.ends_combine()) return;
  runtime_->dispatcher().EndCombine(&batch.handle, batch.combine_y());
}

// Computes the own tokens, or all tokens if each rank has a TP slice of the expert.
void MoeLayer::ComputeShared(MoeBatch& batch) const {
  if (!weights_.has_shared || runtime_->shared_dispatched()) return;
  const Share own =
      batch.partition ? batch.partition->own(runtime_->comm().mesh.rank()) : Share{0, batch.tokens};
  ComputeSharedExpert(config_, weights_, batch.hidden + own.begin * config_.hidden, own.size(),
                      &batch.shared, runtime_->pool());
}

void MoeLayer::Scatter(MoeBatch& batch) const {
  RankComm& comm = runtime_->comm();
  const Mesh& mesh = comm.mesh;
  const int64_t hidden = config_.hidden;
  const bool add_shared = weights_.has_shared && !runtime_->shared_dispatched();
  const Share own = batch.partition ? batch.partition->own(mesh.rank()) : Share{0, batch.tokens};
  float* own_out = batch.out + own.begin * hidden;
  const auto count_parts = [&](int first, int ranks, size_t size) {
    batch.part_sizes.resize(ranks);
    for (int i = 0; i < ranks; ++i)
      batch.part_sizes[i] = batch.partition->own(first + i).size() * size;
    return std::span<const size_t>(batch.part_sizes);
  };

  if (batch.partition && mesh.moe_tp() > 1)
    comm.moe_tp->ReduceScatterV(batch.y, own_out,
                                count_parts(mesh.ep_rank() * mesh.moe_tp(), mesh.moe_tp(), hidden));
  if (add_shared)
    kernels::AddInPlace(own_out, batch.shared.y.data(), own.size() * hidden, runtime_->pool());
  if (!batch.partition) {
    // Each rank has the partial sum of its experts and of its slices, the shared expert's included.
    comm.tp->AllReduceSum(own_out, own.size() * hidden);
    return;
  }
  if (mesh.attn_tp() == 1) return;
  const int first = mesh.dp_rank() * mesh.attn_tp();
  comm.attn_tp->AllGatherV(own_out, batch.out,
                           count_parts(first, mesh.attn_tp(), hidden * sizeof(float)));
  if (!batch.routed_experts) return;
  const int k = config_.router.top_k;
  comm.attn_tp->AllGatherV(batch.routed_experts + own.begin * k, batch.routed_experts,
                           count_parts(first, mesh.attn_tp(), k * sizeof(int32_t)));
}

}  // namespace switchyard
