// The router's stage of an MoE layer on a GPU.
#include "core/check.h"
#include "core/error.h"
#include "moe/cuda/cuda_backend.h"
#include "moe/cuda/router/router_logits.h"
#include "moe/cuda/router/select_and_order.h"
#include "moe/cuda/router/select_experts.h"

namespace switchyard::cuda {

void CudaMoeBackend::Route(const MoeLayerParts& layer, MoeState& state) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  s.MarkStage(nullptr);
  PlanRound(parts, s);
  // PrePermute computes the logits and selects the experts.
  if (RoutesInOneKernel(parts, s)) return;
  Check(RouterLogits(Logits(parts, s), chain()), "router logits");
  if (FusesSelectAndOrder(s)) return;  // PrePermute selects the experts
  Check(SelectExpertsOnDevice(Choice(parts, s), stream()), "choice of experts");
  StoreRoutedExperts(s);
  if (parts.config.router.scales_input)
    Check(ScaleInputRows({.x = s.round_x(),
                          .tokens = s.round.size(),
                          .width = s.width,
                          .weights = s.buffers.weights.as<float>(),
                          .y = s.buffers.scaled.as<float>()},
                         stream()),
          "scaling of rows");
  if (s.choice) ChooseReplicas(parts, s);
  if (shared_dispatched()) DispatchShared(parts, s);
}

void CudaMoeBackend::ChooseReplicas(const CudaMoeParts& parts, const CudaMoeState& s) const {
  const int64_t tokens = s.round.size();
  const int32_t* logical = s.buffers.logical.as<int32_t>();
  Check(PlacePhysical(
            {.logical = logical,
             .physical = s.choice->Choose(parts.config.layer, s.first_routed(), logical, tokens),
             .local_ids = scatters_ ? nullptr : local_ids_.as<int32_t>(),
             .tokens = tokens,
             .k = shape_.top_k,
             .ids = s.buffers.ids.as<int32_t>(),
             .record = RecordOf(parts, s)},
            stream()),
        "places of replicas");
}

void CudaMoeBackend::DispatchShared(const CudaMoeParts& parts, const CudaMoeState& s) const {
  const MoeBuffers& buffers = s.buffers;
  const int64_t tokens = s.round.size();
  const bool gated = parts.shared_gate.n > 0;
  if (gated)
    Check(RouterLogits({.x = s.round_x(),
                        .w = parts.shared_gate.data.data(),
                        .w_is_bf16 = parts.shared_gate.type == ElementType::kBF16,
                        .y = buffers.shared_gate.as<float>(),
                        .m = tokens,
                        .n = 1,
                        .k = s.width},
                       stream()),
          "gate of the shared expert");
  Check(AppendSharedSlots({.ids = buffers.ids.as<int32_t>(),
                           .weights = buffers.weights.as<float>(),
                           .gates = gated ? buffers.shared_gate.as<float>() : nullptr,
                           .owners = owners_.as<int32_t>(),
                           .tokens = tokens,
                           .k = shape_.top_k,
                           .ranks = mesh_.ep(),
                           .rank = mesh_.ep_rank(),
                           .first_shared = experts_.size() - mesh_.ep(),
                           .wide_ids = buffers.wide_ids.as<int32_t>(),
                           .wide_weights = buffers.wide_weights.as<float>()},
                          stream()),
        "slots of the shared expert");
}

const int32_t* CudaMoeBackend::DispatchedIds(const CudaMoeState& s) const {
  return (shared_dispatched() ? s.buffers.wide_ids : s.buffers.ids).as<int32_t>();
}
const float* CudaMoeBackend::DispatchedWeights(const CudaMoeState& s) const {
  return (shared_dispatched() ? s.buffers.wide_weights : s.buffers.weights).as<float>();
}

const float* CudaMoeBackend::DispatchedRowsOf(const CudaMoeState& s) const {
  return shape_.scales_input ? s.buffers.scaled.as<float>() : s.round_x();
}

RoutingRecord CudaMoeBackend::RecordOf(const CudaMoeParts& parts, const CudaMoeState& s) const {
  if (!s.log) return {};
  return s.log->RecordOf(parts.index, s, s.ReportedInRound(mesh_), parts.physical_of.as<int32_t>());
}

RouterLogitsParams CudaMoeBackend::Logits(const CudaMoeParts& parts, const CudaMoeState& s) {
  // Routers by token ids read the rows of the experts; only the ids are in rows of their own.
  const bool by_token = parts.config.router.by_token;
  return {.x = by_token ? s.round_x() : s.round_router_x(),
          .w = parts.router.data.data(),
          .w_is_bf16 = parts.router.type == ElementType::kBF16,
          .bias = parts.router_bias.as<float>(),
          .y = s.buffers.logits.as<float>(),
          .m = s.round.size(),
          .n = parts.config.router.num_logits(),
          .k = by_token ? s.width : s.router_width};
}

// With a chooser, the selected ids stay logical; ChooseReplicas maps them to physical ids and
// records them.
SelectExpertsParams CudaMoeBackend::Choice(const CudaMoeParts& parts, const CudaMoeState& s) const {
  const RouterConfig& router = parts.config.router;
  const MoeBuffers& buffers = s.buffers;
  const OwnTokens own = s.OwnOfRound();
  const RouterFaults faults = s.router_faults.From(own.in_group);
  return {.logits = buffers.logits.as<float>(),
          .correction_bias = parts.correction_bias.as<float>(),
          .tokens = s.round.size(),
          .num_experts = router.num_experts,
          .top_k = router.top_k,
          .zero_experts = router.zero_experts,
          .scoring = static_cast<int>(router.scoring),
          .renormalize = router.renormalize,
          .num_groups = router.num_groups,
          .topk_groups = router.topk_groups,
          .top2_sum = router.group_score == RouterConfig::GroupScore::kTop2Sum,
          .scaling = router.routed_scaling_factor,
          .jitter = router.jitter,
          .token_experts = parts.token_experts.as<int32_t>(),
          .token_rows = parts.token_rows,
          .token_ids = router.by_token ? s.round_router_x() + s.router_width - 1 : nullptr,
          .token_stride = s.router_width,
          .places = s.choice ? nullptr : parts.places.as<int32_t>(),
          .logical = buffers.logical.as<int32_t>(),
          .ids = buffers.ids.as<int32_t>(),
          .weights = buffers.weights.as<float>(),
          .zero_weights =
              router.zero_experts > 0 ? buffers.zero_weights.as<float>() + s.round.begin : nullptr,
          .faults = {.records = faults.records,
                     .index = faults.index,
                     .begin = own.in_round.begin,
                     .end = own.in_round.end,
                     .of_expert_0 = FaultOf(parts.config.layer, 0)},
          .record = s.choice ? RoutingRecord{} : RecordOf(parts, s)};
}

// Selection and ordering are fused if rows are not exchanged or scaled, and no stage in between
// reads the selection.
bool CudaMoeBackend::FusesSelectAndOrder(const CudaMoeState& s) const {
  return device_.options().fused && !s.exchange && !gathers() && !s.choice && !s.streams &&
         !shared_dispatched() && !shape_.scales_input && s.round.size() <= kMaxTokensToOrder &&
         shape_.num_logits() <= kMaxLogitsToOrder && permute_.joins_selection;
}

bool CudaMoeBackend::RoutesInOneKernel(const CudaMoeParts& parts, const CudaMoeState& s) const {
  return FusesSelectAndOrder(s) &&
         RoutesFewTokens(Logits(parts, s), parts.config.router.top_k, chain());
}

// Each rank stores its own tokens; Scatter all-gathers them over the attention group.
void CudaMoeBackend::StoreRoutedExperts(const CudaMoeState& s) const {
  if (!s.routed_experts) return;
  const int k = shape_.top_k;
  const OwnTokens own = s.OwnOfRound();
  if (own.in_round.size() == 0) return;
  Check(cudaMemcpyAsync(s.routed_experts + own.in_group * k,
                        s.buffers.logical.as<int32_t>() + own.in_round.begin * k,
                        own.in_round.size() * k * sizeof(int32_t), cudaMemcpyDeviceToDevice,
                        stream()),
        "copy of routed experts");
}

}  // namespace switchyard::cuda
