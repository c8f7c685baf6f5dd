// The stages of an MoE layer on CPUs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/router/physical_choice.h"
#include "moe/runners/expert_parts.h"

namespace switchyard {
namespace {

struct CpuMoeParts : MoeLayerParts {
  CpuMoeParts(MoeLayerConfig layer_config, MoeLayerWeights layer_weights,
              const CpuMoeBackend& moe_backend)
      : MoeLayerParts(std::move(layer_config)),
        backend(moe_backend),
        weights(std::move(layer_weights)),
        owners(std::move(weights.owners)) {
    owners.resize(weights.experts.size());
  }

  void SetReplicas(std::vector<int32_t> new_replicas) override {
    replicas = std::move(new_replicas);
  }
  void CheckFormats(const kernels::ExpertWeights& expert) const override {
    for (const WeightView* w : {&expert.gate, &expert.up, &expert.down})
      if (!backend.Supports(w->format))
        throw Invalid("--moe-runner-backend {} does not support {} experts",
                      backend.options().runner_backend, Name(w->format));
  }
  OwnedExpert Held(int local) const override { return {weights.experts[local], owners[local]}; }
  std::vector<OwnedExpert> Swap(std::vector<OwnedExpert> experts) override {
    CHECK_EQ(experts.size(), owners.size());
    // The routed experts come first. A dispatched shared expert follows them and is not swapped.
    for (size_t i = 0; i < experts.size(); ++i) {
      std::swap(weights.experts[i], experts[i].weights);
      std::swap(owners[i], experts[i].owner);
    }
    return experts;
  }

  ExpertBlock Block() const {
    return {.experts = weights.experts,
            .activation = config.activation,
            .alpha = config.swiglu_alpha,
            .limit = config.swiglu_limit};
  }

  const CpuMoeBackend& backend;
  MoeLayerWeights weights;
  std::vector<std::shared_ptr<const void>> owners;  // [routed experts of this rank]
  // [num_logical] physical expert to which this rank sends each expert's rows.
  std::vector<int32_t> replicas;
};

const CpuMoeParts& Own(const MoeLayerParts& parts) {
  return static_cast<const CpuMoeParts&>(parts);
}
CpuMoeState& Own(MoeState& state) { return static_cast<CpuMoeState&>(state); }

void StoreRouterFaults(int layer, const CpuMoeState& s) {
  const auto& [records, index] = s.router_faults;
  if (!records) return;
  const OwnTokens own = s.OwnOfRound();
  for (int64_t i = 0; i < own.in_round.size(); ++i) {
    const int32_t expert = s.logical.bad_experts[own.in_round.begin + i];
    if (expert < 0) continue;
    int32_t& record = records[index[own.in_group + i]];
    if (record == 0) record = FaultOf(layer, expert);
  }
}

// Each rank writes its own tokens; Scatter all-gathers them over the attention group.
void StoreRoutedExperts(const CpuMoeState& s) {
  if (!s.routed_experts) return;
  const int k = s.logical.k;
  const OwnTokens own = s.OwnOfRound();
  std::copy_n(s.logical.ids.data() + own.in_round.begin * k, own.in_round.size() * k,
              s.routed_experts + own.in_group * k);
}

void ReportRound(RoutingObserver& observer, const Mesh& mesh, int layer, const CpuMoeState& s) {
  const OwnTokens own = s.ReportedInRound(mesh);
  const int64_t count = own.in_round.size();
  const auto rows = [&](const TopK& topk) {
    return count == 0 ? std::span<const int32_t>()
                      : std::span(topk.ids).subspan(own.in_round.begin * topk.k, count * topk.k);
  };
  observer.OnRoute(s.pass, layer,
                   {.first_row = count == 0 ? 0 : s.first_row + own.in_group,
                    .tokens = count,
                    .logical = rows(s.logical),
                    .physical = rows(*s.topk)});
}

}  // namespace

std::unique_ptr<MoeLayerParts> CpuMoeBackend::Place(MoeLayerConfig config,
                                                    MoeLayerWeights weights) {
  auto parts = std::make_unique<CpuMoeParts>(std::move(config), std::move(weights), *this);
  MoeLayerWeights& w = parts->weights;
  if (shared_dispatched()) {
    CHECK(w.has_shared);
    CHECK_EQ(w.shared.gate.n, shape_.intermediate);
    w.experts.push_back(w.shared);
  }
  CHECK_EQ(static_cast<int>(w.experts.size()), experts_.LocalExperts(mesh_.ep_rank()));
  for (const kernels::ExpertWeights& expert : w.experts) parts->CheckFormats(expert);
  return parts;
}

float* CpuMoeBackend::GatheredRows(MoeState& state) {
  return Own(state).gathered.Get(state.lane_tokens * state.width);
}
float* CpuMoeBackend::GatheredRouterRows(MoeState& state) {
  return Own(state).gathered_router.Get(state.lane_tokens * state.router_width);
}
float* CpuMoeBackend::LaneSums(MoeState& state) {
  return Own(state).lane_sums.Get(state.lane_tokens * state.width);
}

MoeInputBuffer CpuMoeBackend::InputRows(MoeState& state) {
  Own(state).handle.round = {};
  return {.rows = dispatcher_->InputRows(state.round.size(), state.decode, &Own(state).handle),
          .format = exchange_.row_format};
}

// Converts the round's rows for dispatch. Runs just before the router, so that the router then
// reads the rows from cache, or after it if the router scales rows.
void CpuMoeBackend::StageInputRows(CpuMoeState& s) const {
  if (fused_ || std::exchange(s.rows_staged, false)) return;
  const int64_t tokens = s.round.size(), row_bytes = exchange_.row_format.Bytes(s.width);
  std::byte* rows = dispatcher_->InputRows(tokens, s.decode, &s.handle);
  if (rows == nullptr) return;
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      StoreRow(exchange_.row_format, s.dispatch_x + t * s.width, s.width, rows + t * row_bytes);
  };
  pool_.RunRanges(tokens, kRowGrain, std::cref(body));
}

// Multiplies the round's rows by the weights of their experts, and sets these weights to 1. A
// weight that is NaN (TopK::bad_experts) stays NaN. Each element is one product, so its bits do not
// depend on the dispatcher or on the rank of the expert.
void CpuMoeBackend::ScaleInputRows(CpuMoeState& s) const {
  const int64_t tokens = s.round.size();
  float* const scaled = s.scaled.Get(tokens * s.width);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float& weight = s.logical.weights[t];
      const float* x = s.round_x() + t * s.width;
      float* y = scaled + t * s.width;
      for (int64_t i = 0; i < s.width; ++i) y[i] = x[i] * weight;
      if (s.logical.ids[t] >= 0 && !std::isnan(weight)) weight = 1.0f;
    }
  };
  pool_.RunRanges(tokens, kRowGrain, std::cref(body));
  s.dispatch_x = scaled;
}

void CpuMoeBackend::Route(const MoeLayerParts& layer, MoeState& state) {
  const CpuMoeParts& parts = Own(layer);
  const MoeLayerConfig& config = parts.config;
  CpuMoeState& s = Own(state);
  s.handle.round = {};
  if (s.combines_once)
    s.handle.round = {(s.rounds_done - 1) * s.max_round_tokens, s.ends_combine()};
  const bool scales = config.router.scales_input;
  s.dispatch_x = s.round_x();
  if (!scales) StageInputRows(s);
  const int experts = config.router.num_logits();
  const int64_t tokens = s.round.size();
  float* logits = s.logits.Get(tokens * experts);
  if (tokens > 0)
    kernels::Linear({.x = s.round_router_x(),
                     .ldx = s.router_width,
                     .w = parts.weights.router.w,
                     .bias = parts.weights.router.bias,
                     .y = logits,
                     .ldy = experts,
                     .m = tokens},
                    pool_);
  if (config.router.by_token) {
    LookUpExperts(config.router, parts.weights.router, logits, tokens,
                  s.round_router_x() + s.router_width - 1, s.router_width, &s.logical, pool_);
  } else {
    SelectExperts(config.router, logits, tokens, parts.weights.router.correction_bias, &s.logical,
                  pool_);
  }
  if (config.router.zero_experts > 0)
    RemoveZeroExperts(config.router, &s.logical, s.zero_weights.Get(s.lane_tokens) + s.round.begin);
  if (scales) {
    ScaleInputRows(s);
    StageInputRows(s);
  }
  StoreRouterFaults(config.layer, s);
  StoreRoutedExperts(s);

  // Maps logical experts to physical experts, if the two differ.
  s.topk = &s.logical;
  if (chooser_ || !parts.replicas.empty() || shared_dispatched()) {
    s.topk = &s.physical;
    if (chooser_) {
      chooser_->Choose({.pass = s.pass,
                        .micro_batch = s.micro_batch,
                        .layer = config.layer,
                        .first_token = s.first_routed()},
                       s.logical, &s.physical);
    } else if (parts.replicas.empty()) {
      s.physical = s.logical;
    } else {
      ToPhysical(parts.replicas, s.logical, &s.physical);
    }
  }
  if (shared_dispatched()) {
    const float* gates =
        SharedGates(config, parts.weights, s.round_x(), s.round.size(), &s.shared, pool_);
    AppendSharedSlots(experts_, mesh_.ep(), mesh_.ep_rank(), active_ranks(), gates, &s.physical);
  }
  if (observer_) ReportRound(*observer_, mesh_, config.layer, s);
}

void CpuMoeBackend::BeginDispatch(const MoeLayerParts& /*layer*/, MoeState& state) {
  CpuMoeState& s = Own(state);
  if (fused_) return fused_->Begin(s.dispatch_x, *s.topk, s.decode, &s.handle);
  dispatcher_->BeginDispatch(s.dispatch_x, *s.topk, s.decode, &s.handle);
}

void CpuMoeBackend::RunShared(const MoeLayerParts& layer, MoeState& state) {
  const CpuMoeParts& parts = Own(layer);
  if (!parts.weights.has_shared || shared_dispatched()) return;
  ComputeSharedExpert(parts.config, parts.weights, state.own_x(), state.own.size(),
                      &Own(state).shared, pool_);
}

// A fused operator has no separate stages between here and EndCombine.
void CpuMoeBackend::EndDispatch(const MoeLayerParts& /*layer*/, MoeState& state) {
  if (!fused_) Own(state).dispatched = dispatcher_->EndDispatch(&Own(state).handle);
}

void CpuMoeBackend::PrePermute(const MoeLayerParts& layer, MoeState& state) {
  if (fused_) return;
  CpuMoeState& s = Own(state);
  permute(s.dispatched.layout).pre(permute_context(), s.dispatched, &s.grouped);
  if (observer_ && observer_->needs_dispatch())
    observer_->OnDispatch(s.pass, layer.config.layer, s.grouped);
}

// Returns the destinations of the runner's outputs. If the result is empty, the runner stores them
// in state.outputs.
std::span<std::byte* const> CpuMoeBackend::OutputPlaces(CpuMoeState& s) const {
  const ExpertRows none_yet = permute(s.dispatched.layout).post(s.grouped, nullptr);
  const auto places = dispatcher_->OutputDestinations(none_yet, &s.handle);
  s.outputs_written = !places.empty();
  if (!s.outputs_written) s.outputs.Get(s.grouped.num_rows * s.width);
  return places;
}

void CpuMoeBackend::RunExperts(const MoeLayerParts& layer, MoeState& state) {
  if (fused_) return;
  const CpuMoeParts& parts = Own(layer);
  CpuMoeState& s = Own(state);
  s.destinations = OutputPlaces(s);
  if (splits_down()) return runner_->RunGateUp(parts.Block(), s.grouped, pool_, &s.middle);
  if (s.outputs_written)
    return runner_->RunTo(parts.Block(), s.grouped, s.width, pool_, exchange_.output_dtype,
                          s.destinations);
  runner_->Run(parts.Block(), s.grouped, s.width, pool_, s.outputs.data());
}

// A fused operator computes the experts in EndCombine, so there is nothing to skip here. With
// single-batch overlap, RunDown still computes the down projection and needs the results of
// RunExperts.
void CpuMoeBackend::SkipExperts(const MoeLayerParts& layer, MoeState& state) {
  if (fused_) return;
  if (splits_down()) return RunExperts(layer, state);
  OutputPlaces(Own(state));
}

void CpuMoeBackend::PostPermute(const MoeLayerParts& /*layer*/, MoeState& state) {
  if (fused_ || splits_down()) return;
  CpuMoeState& s = Own(state);
  s.expert_rows =
      permute(s.dispatched.layout).post(s.grouped, s.outputs_written ? nullptr : s.outputs.data());
  dispatcher_->PrepareCombine(s.expert_rows, &s.handle);
}

void CpuMoeBackend::BeginCombine(const MoeLayerParts& /*layer*/, MoeState& state) {
  if (fused_ || splits_down()) return;
  dispatcher_->BeginCombine(Own(state).expert_rows, &Own(state).handle);
}

void CpuMoeBackend::RunDown(const MoeLayerParts& layer, MoeState& state) {
  if (!splits_down()) return;
  CpuMoeState& s = Own(state);
  const ExpertBlock block = Own(layer).Block();
  RunnerOutputs to{.dtype = exchange_.output_dtype, .places = s.destinations};
  if (!s.outputs_written) to.y = s.outputs.Get(s.grouped.num_rows * s.width);
  s.expert_rows = permute(s.dispatched.layout).post(s.grouped, to.y);
  const ExpertParts parts(exchange_.local_experts, dispatcher_->combine_parts());
  const auto local = static_cast<int64_t>(block.experts.size());
  for (int part = 0; part < parts.count(); ++part) {
    const Range of_part = parts.Of(part);
    const Range experts{std::min(of_part.begin, local), std::min(of_part.end, local)};
    runner_->RunDown(block, s.grouped, experts, s.width, pool_, &s.middle, to);
    dispatcher_->BeginCombinePart(s.expert_rows, {part, RowsOfExperts(s.grouped, experts)},
                                  &s.handle);
  }
}

void CpuMoeBackend::EndCombine(const MoeLayerParts& layer, MoeState& state) {
  CpuMoeState& s = Own(state);
  if (fused_) return fused_->End(Own(layer).Block(), &s.handle, s.combine_y());
  dispatcher_->EndCombine(&s.handle, s.combine_y());
}

// Adds the input rows of the own tokens, times the weights of their experts without computation.
void CpuMoeBackend::AddZeroExperts(const CpuMoeState& s, float* own_out) const {
  const float* weights = s.zero_weights.data() + (s.partitioned ? s.partition.own_in_lane() : 0);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (weights[t] == 0.0f) continue;
      const float* x = s.own_x() + t * s.width;
      float* y = own_out + t * s.width;
      for (int64_t i = 0; i < s.width; ++i) y[i] += weights[t] * x[i];
    }
  };
  pool_.RunRanges(s.own.size(), kRowGrain, std::cref(body));
}

void CpuMoeBackend::AddShared(const MoeLayerParts& layer, MoeState& state, float* own_out) {
  // Without a partition every rank has all tokens, and an all-reduce follows. So one rank adds.
  if (layer.config.router.zero_experts > 0 && (state.partitioned || mesh_.tp_rank() == 0))
    AddZeroExperts(Own(state), own_out);
  if (!Own(layer).weights.has_shared || shared_dispatched()) return;
  kernels::AddInPlace(own_out, Own(state).shared.y.data(), state.own.size() * state.width, pool_);
}

}  // namespace switchyard
