#include "moe/cuda/moe_layer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "kernels/cuda/grouped_gemm.h"
#include "moe/cuda/router_logits.h"
#include "moe/cuda/select_and_order.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

std::span<const float> Floats(const float* data, int64_t count) {
  return {data, static_cast<size_t>(data ? count : 0)};
}

DeviceExperts PlaceExperts(const MoeLayerWeights& weights, CudaMoeRuntime& runtime) {
  CHECK_EQ(static_cast<int>(weights.experts.size()), runtime.local_experts());
  return DeviceExperts(weights.experts,
                       ChooseArithmetic(weights.experts, runtime.device().options().dtype,
                                        IsHopper(), runtime.device().options().packs_experts));
}

// [num_logical] the id that each logical expert maps to: the physical expert if rows are exchanged,
// otherwise the local id on this rank. Empty: the identity.
std::vector<int32_t> PlacesOf(const ExpertPlacement& placement, const CudaMoeRuntime& runtime) {
  const Mesh& mesh = runtime.mesh();
  const bool stays = !runtime.scatters();
  if (placement.is_identity() && (!stays || mesh.ep() == 1)) return {};
  std::vector<int32_t> places =
      runtime.scatters() ? placement.ReplicasFor(mesh.ep(), mesh.ep_rank(), runtime.options().nodes)
                         : placement.CommonReplicas();
  if (stays)
    for (int32_t& place : places) place = runtime.experts().LocalIdOn(mesh.ep_rank(), place);
  return places;
}

std::vector<int32_t> LocalIdsOf(const ExpertMap& experts, int ep_rank) {
  std::vector<int32_t> ids(experts.size());
  for (int e = 0; e < experts.size(); ++e) ids[e] = experts.LocalIdOn(ep_rank, e);
  return ids;
}

}  // namespace

CudaMoeLayer::CudaMoeLayer(MoeLayerConfig config, const MoeLayerWeights& weights,
                           CudaMoeRuntime& runtime)
    : config_(std::move(config)), runtime_(runtime), experts_(PlaceExperts(weights, runtime)) {
  const MoeShape& shape = runtime.shape();
  CHECK_EQ(config_.hidden, shape.hidden);
  CHECK_EQ(config_.router.num_experts, shape.num_experts);
  CHECK_EQ(config_.router.top_k, shape.top_k);
  CHECK(config_.router.num_groups >= 1 &&
        config_.router.num_experts % config_.router.num_groups == 0);
  if (config_.router.num_groups > kMaxRouterGroups)
    throw Invalid("num_expert_groups={} exceeds the CUDA limit of {}", config_.router.num_groups,
                  kMaxRouterGroups);
  const int redundant = runtime.options().num_redundant_experts;
  if (config_.placement.num_logical() == 0)
    config_.placement = ExpertPlacement::Trivial(shape.num_experts, redundant);
  CHECK_EQ(config_.placement.num_physical(), shape.num_experts + redundant);

  if (const auto places = PlacesOf(config_.placement, runtime); !places.empty())
    places_ = UploadIds(places);
  if (runtime.gathers())
    local_ids_ = UploadIds(LocalIdsOf(runtime.experts(), runtime.mesh().ep_rank()));
  routed_experts_ = DeviceMemory(shape.max_tokens * shape.top_k * sizeof(int32_t));
  PlaceRouter(weights.router);
  PlaceShared(weights);
  runtime.ReserveExperts(experts_);
}

void CudaMoeLayer::PlaceRouter(const RouterWeights& router) {
  const int64_t experts = config_.router.num_experts;
  router_ = UploadPlain(router.w);
  if (router.bias) router_bias_ = UploadFloats(Floats(router.bias, experts));
  if (router.correction_bias)
    correction_bias_ = UploadFloats(Floats(router.correction_bias, experts));
}

void CudaMoeLayer::PlaceShared(const MoeLayerWeights& weights) {
  if (!weights.has_shared) return;
  const std::span one(&weights.shared, 1);
  shared_.emplace(one, ChooseArithmetic(one, runtime_.device().options().dtype, IsHopper()));
  runtime_.ReserveShared(*shared_);
  if (weights.shared_gate.defined()) shared_gate_ = UploadPlain(weights.shared_gate);
}

void CudaMoeLayer::Forward(const float* hidden, const MoeTokens& tokens, float* out) {
  const Mesh& mesh = runtime_.mesh();
  const auto groups = tokens.group_tokens, decoding = tokens.group_decode_tokens;
  CHECK_EQ(static_cast<int>(groups.size()), mesh.dp());
  CHECK_EQ(groups.size(), decoding.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    CHECK_LE(decoding[g], groups[g]);
    CHECK_LE(groups[g], runtime_.shape().max_tokens);
  }
  const auto run = [&](std::span<const int64_t> counts, int64_t first, bool decode) {
    if (std::ranges::all_of(counts, [](int64_t n) { return n == 0; })) return;
    StartBatch(hidden + first * config_.hidden, counts, decode, out + first * config_.hidden,
               &batch_);
    batch_.routed_experts = tokens.routed_experts
                                ? routed_experts_.as<int32_t>() + first * config_.router.top_k
                                : nullptr;
    batch_.router_faults = tokens.router_faults.From(first);
    RunBatch(batch_);
  };

  if (std::ranges::equal(groups, decoding)) return run(groups, 0, /*decode=*/true);
  if (!runtime_.splits_mixed_batches()) return run(groups, 0, /*decode=*/false);
  run(decoding, 0, /*decode=*/true);
  std::vector<int64_t>& others = batch_.other_tokens;
  others.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) others[g] = groups[g] - decoding[g];
  run(others, decoding[mesh.dp_rank()], /*decode=*/false);
}

void CudaMoeLayer::CopyRoutedExperts(int64_t tokens, int32_t* to) {
  CHECK_LE(tokens, runtime_.shape().max_tokens);
  runtime_.device().CopyOut(to, routed_experts_.data(),
                            tokens * config_.router.top_k * sizeof(int32_t));
}

void CudaMoeLayer::StartBatch(const float* hidden, std::span<const int64_t> group_tokens,
                              bool decode, float* out, CudaMoeBatch* batch) {
  const Mesh& mesh = runtime_.mesh();
  batch->hidden = hidden;
  batch->out = out;
  batch->tokens = group_tokens[mesh.dp_rank()];
  batch->routed_experts = nullptr;
  batch->router_faults = {};
  batch->spreads = runtime_.scatters();
  batch->lane_tokens = batch->tokens;
  batch->lanes.assign(1, batch->tokens);
  batch->own = {0, batch->tokens};
  if (batch->spreads) {
    batch->partition.Reset(mesh, group_tokens);
    batch->own = batch->partition.own(mesh.rank());
    batch->lane_tokens = batch->partition.lane_tokens();
    batch->lanes.assign(mesh.ep(), 0);
    for (int rank = 0; rank < mesh.world(); ++rank)
      batch->lanes[rank / mesh.moe_tp()] += batch->partition.own(rank).size();
  }
  const int64_t longest = std::ranges::max(batch->lanes);
  batch->exchange = runtime_.ExchangeFor(decode, longest);
  batch->max_round_tokens = runtime_.RoundTokens(batch->exchange);
  batch->rounds = CeilDiv(longest, batch->max_round_tokens);
  batch->rounds_done = 0;
  batch->round = {};
}

void CudaMoeLayer::RunBatch(CudaMoeBatch& batch) {
  Gather(batch);
  while (batch.NextRound()) RunRound(batch);
  Scatter(batch);
}

void CudaMoeLayer::RunRound(CudaMoeBatch& batch) {
  Route(batch);
  BeginDispatch(batch);
  EndDispatch(batch);
  PrePermute(batch);
  RunExperts(batch);
  BeginCombine(batch);
  EndCombine(batch);
}

std::span<const size_t> CudaMoeLayer::PartSizes(CudaMoeBatch& batch, int first, int ranks,
                                                size_t size) const {
  batch.part_sizes.resize(ranks);
  for (int i = 0; i < ranks; ++i)
    batch.part_sizes[i] = batch.partition.own(first + i).size() * size;
  return batch.part_sizes;
}

std::span<const size_t> CudaMoeLayer::LaneSizes(CudaMoeBatch& batch, size_t size) const {
  batch.part_sizes.resize(batch.lanes.size());
  for (size_t i = 0; i < batch.lanes.size(); ++i)
    batch.part_sizes[i] = batch.InRound(batch.lanes[i]) * size;
  return batch.part_sizes;
}

void CudaMoeLayer::Gather(CudaMoeBatch& batch) {
  if (const Branch* branch = SharedBranch(batch)) branch->Fork(runtime_.stream());
  const int64_t hidden = config_.hidden;
  const Mesh& mesh = runtime_.mesh();
  if (!batch.spreads) {
    batch.x = batch.hidden;
    batch.y = batch.out;
    return;
  }
  const TokenPartition& partition = batch.partition;
  batch.y = mesh.moe_tp() == 1 ? batch.out + batch.own.begin * hidden
                               : runtime_.buffers().lane_sums.as<float>();
  if (partition.lane_is_local()) {
    batch.x = batch.hidden + partition.lane_begin() * hidden;
    return;
  }
  float* gathered = runtime_.buffers().gathered.as<float>();
  runtime_.groups().moe_tp->AllGatherV(
      batch.hidden + batch.own.begin * hidden, gathered,
      PartSizes(batch, mesh.ep_rank() * mesh.moe_tp(), mesh.moe_tp(), hidden * sizeof(float)));
  batch.x = gathered;
}

void CudaMoeLayer::Route(CudaMoeBatch& batch) {
  MoeBuffers& buffers = runtime_.buffers();
  Check(RouterLogits({.x = batch.x + batch.round.begin * config_.hidden,
                      .w = router_.data.data(),
                      .w_is_bf16 = router_.type == ElementType::kBF16,
                      .bias = router_bias_.as<float>(),
                      .y = buffers.logits.as<float>(),
                      .m = batch.round.size(),
                      .n = config_.router.num_experts,
                      .k = config_.hidden},
                     runtime_.chain()),
        "router logits");
  if (FusesSelectAndOrder(batch)) return;  // PrePermute selects them
  Check(SelectExpertsOnDevice(Choice(batch), runtime_.stream()), "choice of experts");
  StoreRoutedExperts(batch);
}

SelectExpertsParams CudaMoeLayer::Choice(const CudaMoeBatch& batch) const {
  const RouterConfig& router = config_.router;
  const MoeBuffers& buffers = runtime_.buffers();
  const OwnTokens own = batch.OwnOfRound();
  const RouterFaults faults = batch.router_faults.From(own.in_group);
  return {.logits = buffers.logits.as<float>(),
          .correction_bias = correction_bias_.as<float>(),
          .tokens = batch.round.size(),
          .num_experts = router.num_experts,
          .top_k = router.top_k,
          .scoring = static_cast<int>(router.scoring),
          .renormalize = router.renormalize,
          .num_groups = router.num_groups,
          .topk_groups = router.topk_groups,
          .top2_sum = router.group_score == RouterConfig::GroupScore::kTop2Sum,
          .scaling = router.routed_scaling_factor,
          .places = places_.as<int32_t>(),
          .logical = buffers.logical.as<int32_t>(),
          .ids = buffers.ids.as<int32_t>(),
          .weights = buffers.weights.as<float>(),
          .faults = {.records = faults.records,
                     .index = faults.index,
                     .begin = own.in_round.begin,
                     .end = own.in_round.end,
                     .of_expert_0 = FaultOf(config_.layer, 0)}};
}

// Fuses selection and ordering if rows are not exchanged and no earlier stage reads the selection.
bool CudaMoeLayer::FusesSelectAndOrder(const CudaMoeBatch& batch) const {
  return runtime_.device().options().fused && !batch.exchange && !runtime_.gathers() &&
         batch.round.size() <= kMaxTokensToOrder;
}

// Each rank stores its own tokens; Scatter all-gathers them over the attention group.
void CudaMoeLayer::StoreRoutedExperts(CudaMoeBatch& batch) {
  if (!batch.routed_experts) return;
  const int k = config_.router.top_k;
  const OwnTokens own = batch.OwnOfRound();
  if (own.in_round.size() == 0) return;
  Check(cudaMemcpyAsync(batch.routed_experts + own.in_group * k,
                        runtime_.buffers().logical.as<int32_t>() + own.in_round.begin * k,
                        own.in_round.size() * k * sizeof(int32_t), cudaMemcpyDeviceToDevice,
                        runtime_.stream()),
        "copy of routed experts");
}

void CudaMoeLayer::BeginDispatch(CudaMoeBatch& batch) {
  const MoeBuffers& buffers = runtime_.buffers();
  if (batch.exchange) {
    batch.exchange->BeginDispatch(0,
                                  {.x = batch.x + batch.round.begin * config_.hidden,
                                   .dtype = DType::kF32,
                                   .ids = buffers.ids.as<int32_t>(),
                                   .weights = buffers.weights.as<float>(),
                                   .tokens = batch.round.size(),
                                   .longest = batch.LongestInRound(),
                                   .addend = SharedInSums(batch)},
                                  runtime_.stream());
  } else if (runtime_.gathers()) {
    GatherAll(batch);
  }
}

// `none` with DP attention: gathers the tokens of all ranks on every rank.
void CudaMoeLayer::GatherAll(CudaMoeBatch& batch) {
  MoeBuffers& buffers = runtime_.buffers();
  const Mesh& mesh = runtime_.mesh();
  const int k = config_.router.top_k;
  Collectives* ep = runtime_.groups().ep;
  const auto gather = [&](const void* part, const DeviceMemory& all, size_t size) {
    const auto sizes = LaneSizes(batch, size);
    if (mesh.ep() > 1) return ep->AllGatherV(part, all.data(), sizes);
    Check(cudaMemcpyAsync(all.data(), part, sizes[0], cudaMemcpyDeviceToDevice, runtime_.stream()),
          "copy of tokens");
  };
  gather(buffers.ids.data(), buffers.all_ids, k * sizeof(int32_t));
  gather(buffers.weights.data(), buffers.all_weights, k * sizeof(float));
  gather(batch.x + batch.round.begin * config_.hidden, buffers.all_x,
         config_.hidden * sizeof(float));
  const int64_t tokens = std::accumulate(batch.lanes.begin(), batch.lanes.end(), int64_t{0});
  Check(MapIds(buffers.all_ids.as<int32_t>(), local_ids_.as<int32_t>(), tokens * k,
               buffers.all_local.as<int32_t>(), runtime_.stream()),
        "local experts of all tokens");
}

// The shared expert needs the own rows only. It computes while dispatch is in flight, or
// concurrently with all stages from Gather to BeginCombine.
void CudaMoeLayer::EndDispatch(CudaMoeBatch& batch) {
  if (batch.rounds_done == 1) ComputeShared(batch);
  MoeBuffers& buffers = runtime_.buffers();
  CudaMoeBatch::Arrived& arrived = batch.arrived;
  const int64_t hidden = config_.hidden;
  const int k = config_.router.top_k;
  const int64_t longest = batch.LongestInRound();
  int64_t tokens = 0;  // of all lanes in this round
  for (const int64_t lane : batch.lanes) tokens += batch.InRound(lane);
  arrived = {};
  if (batch.exchange) {
    const DispatchedRows rows = batch.exchange->EndDispatch(0, runtime_.stream());
    const RowFormat format = runtime_.row_format();
    arrived.in = {.segments = runtime_.mesh().ep(),
                  .capacity = batch.max_round_tokens,
                  .tokens = longest,
                  .counts = rows.counts};
    arrived.rows = rows.rows;
    arrived.row_stride = rows.row_stride;
    arrived.scale_offset = rows.scale_offset;
    arrived.type = format.fp8                     ? ElementType::kFp8
                   : format.dtype == DType::kBF16 ? ElementType::kBF16
                                                  : ElementType::kF32;
    arrived.travelled = true;
    arrived.ids = rows.ids;
  } else {
    const bool all = runtime_.gathers();
    if (!all) tokens = batch.round.size();
    const float* x = all ? buffers.all_x.as<float>() : batch.x + batch.round.begin * hidden;
    arrived.in = {.segments = 1, .capacity = tokens, .tokens = tokens};
    arrived.rows = reinterpret_cast<const std::byte*>(x);
    arrived.row_stride = hidden * static_cast<int64_t>(sizeof(float));
    arrived.ids = all ? buffers.all_local.as<int32_t>() : buffers.ids.as<int32_t>();
    arrived.weights = all ? buffers.all_weights.as<float>() : buffers.weights.as<float>();
  }
  arrived.slots = tokens * std::min(k, experts_.experts);
  arrived.expected_slots = CeilDiv(tokens * k, runtime_.mesh().ep());
}

void CudaMoeLayer::PrePermute(CudaMoeBatch& batch) {
  MoeBuffers& buffers = runtime_.buffers();
  const CudaMoeBatch::Arrived& arrived = batch.arrived;
  batch.ordered_rows = MaxOrderedRows(arrived.slots, experts_.experts);
  batch.order = {.position = buffers.position.as<int32_t>(),
                 .offsets = buffers.offsets.as<int32_t>(),
                 .counts = buffers.counts.as<int32_t>(),
                 .block_groups = buffers.block_groups.as<int32_t>()};
  const RowOrderParams order = {.in = arrived.in,
                                .ids = arrived.ids,
                                .k = config_.router.top_k,
                                .experts = experts_.experts,
                                .blocks = batch.ordered_rows / kGroupBlockRows,
                                .scratch = buffers.order_scratch.as<int32_t>(),
                                .out = batch.order};
  if (!FusesSelectAndOrder(batch))
    return Check(OrderRows(order, runtime_.stream()), "order of rows by expert");
  Check(
      SelectAndOrder(Choice(batch), order, buffers.order_arrived.as<uint32_t>(), runtime_.chain()),
      "choice of experts and order of rows");
  StoreRoutedExperts(batch);
}

ExpertActivation CudaMoeLayer::Activation() const {
  return {.clamped = config_.activation == kernels::Activation::kSwiGluClamped,
          .alpha = config_.swiglu_alpha,
          .limit = config_.swiglu_limit};
}

void CudaMoeLayer::RunExperts(CudaMoeBatch& batch) {
  RunDeviceExperts(experts_, Activation(), batch, config_.router.top_k, runtime_);
}

void CudaMoeLayer::BeginCombine(CudaMoeBatch& batch) {
  if (const Branch* branch = SharedBranch(batch)) branch->Join(runtime_.stream());
  if (batch.exchange)
    batch.exchange->BeginCombine(0, runtime_.buffers().outputs.data(), batch.order.position,
                                 runtime_.stream());
}

void CudaMoeLayer::EndCombine(CudaMoeBatch& batch) {
  const MoeBuffers& buffers = runtime_.buffers();
  float* y = batch.y + batch.round.begin * config_.hidden;
  if (batch.exchange) return batch.exchange->EndCombine(0, y, runtime_.stream());
  const bool adds_up = ReducesAfterSums();
  float* sums = adds_up ? buffers.all_sums.as<float>() : y;
  Check(UnpermuteRows({.outputs = buffers.outputs.data(),
                       .type = experts_.arithmetic.output,
                       .position = batch.order.position,
                       .weights = batch.arrived.weights,
                       .tokens = batch.arrived.in.tokens,
                       .hidden = config_.hidden,
                       .k = config_.router.top_k,
                       .addend = SharedInSums(batch),
                       .y = sums},
                      SharedBranch(batch) ? PdlStream(runtime_.stream()) : runtime_.chain()),
        "sums over slots");
  if (adds_up) runtime_.groups().ep->ReduceScatterV(sums, y, LaneSizes(batch, config_.hidden));
}

// `none` with DP attention: a rank has the partial sums of its own experts for the tokens of all
// ranks.
bool CudaMoeLayer::ReducesAfterSums() const {
  return runtime_.gathers() && runtime_.mesh().ep() > 1;
}

// Whether the combine sums include the shared expert's output. If a later reduction over ranks
// would count it more than once, Scatter adds it instead.
bool CudaMoeLayer::SumsIncludeShared(const CudaMoeBatch& batch) const {
  return shared_ && !ReducesAfterSums() && !(batch.spreads && runtime_.mesh().moe_tp() > 1);
}
TokenAddend CudaMoeLayer::SharedInSums(const CudaMoeBatch& batch) const {
  return SumsIncludeShared(batch) ? SharedOutput(batch.round.begin) : TokenAddend{};
}

// Begins at `token`.
TokenAddend CudaMoeLayer::SharedOutput(int64_t token) const {
  const MoeBuffers& buffers = runtime_.buffers();
  const bool gated = shared_gate_.n > 0;
  return {.x = buffers.shared_y.as<float>() + token * config_.hidden,
          .gate = gated ? buffers.shared_gate.as<float>() + token : nullptr};
}

// The branch on which this batch's shared expert overlaps the other stages; null: no overlap. The
// branch forks and joins in the first round.
const Branch* CudaMoeLayer::SharedBranch(const CudaMoeBatch& batch) const {
  const bool first = batch.rounds > 0 && batch.rounds_done <= 1;
  return shared_ && batch.own.size() > 0 && first ? runtime_.SideStreamFor(batch.own.size())
                                                  : nullptr;
}

// Computes the own tokens, or all tokens if each rank has a TP slice of the expert.
void CudaMoeLayer::ComputeShared(CudaMoeBatch& batch) {
  if (!shared_ || batch.own.size() == 0) return;
  MoeBuffers& buffers = runtime_.buffers();
  const Branch* branch = SharedBranch(batch);
  const PdlStream chain =
      branch ? PdlStream(branch->stream(), runtime_.chain().early) : runtime_.chain();
  const float* x = batch.hidden + batch.own.begin * config_.hidden;
  RunSharedExpert(*shared_, Activation(), x, batch.own.size(), buffers.shared_y.as<float>(),
                  branch ? buffers.beside : buffers.products, chain);
  if (shared_gate_.n == 0) return;
  Check(RouterLogits({.x = x,
                      .w = shared_gate_.data.data(),
                      .w_is_bf16 = shared_gate_.type == ElementType::kBF16,
                      .y = buffers.shared_gate.as<float>(),
                      .m = batch.own.size(),
                      .n = 1,
                      .k = config_.hidden},
                     chain.stream),
        "gate of the shared expert");
}

void CudaMoeLayer::Scatter(CudaMoeBatch& batch) {
  const Mesh& mesh = runtime_.mesh();
  const RankGroups& groups = runtime_.groups();
  const int64_t hidden = config_.hidden;
  float* own_out = batch.out + batch.own.begin * hidden;
  if (batch.spreads && mesh.moe_tp() > 1)
    groups.moe_tp->ReduceScatterV(
        batch.y, own_out, PartSizes(batch, mesh.ep_rank() * mesh.moe_tp(), mesh.moe_tp(), hidden));
  if (shared_ && !SumsIncludeShared(batch))
    Check(
        AddToTokens(
            {.addend = SharedOutput(0), .tokens = batch.own.size(), .hidden = hidden, .y = own_out},
            runtime_.stream()),
        "sum with the shared expert");
  if (!batch.spreads) {
    // Each rank has the partial sum of its experts and of its slices, the shared expert's included.
    if (mesh.tp() > 1) groups.tp->AllReduceSum(own_out, batch.own.size() * hidden);
    return;
  }
  if (mesh.attn_tp() == 1) return;
  const int first = mesh.dp_rank() * mesh.attn_tp();
  groups.attn_tp->AllGatherV(own_out, batch.out,
                             PartSizes(batch, first, mesh.attn_tp(), hidden * sizeof(float)));
  if (!batch.routed_experts) return;
  const int k = config_.router.top_k;
  groups.attn_tp->AllGatherV(batch.routed_experts + batch.own.begin * k, batch.routed_experts,
                             PartSizes(batch, first, mesh.attn_tp(), k * sizeof(int32_t)));
}

}  // namespace switchyard::cuda
