#include "moe/layer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "moe/stream_experts.h"

namespace switchyard {
namespace {

bool IsEmpty(std::span<const int64_t> counts) {
  return std::ranges::all_of(counts, [](int64_t n) { return n == 0; });
}

MoeLayerConfig Checked(MoeLayerConfig config, const MoeBackend& backend) {
  const MoeShape& shape = backend.shape();
  const int redundant = backend.options().num_redundant_experts;
  CHECK_EQ(config.hidden, shape.hidden);
  CHECK_EQ(config.router.num_experts, shape.num_experts);
  CHECK_EQ(config.router.top_k, shape.top_k);
  if (config.placement.num_logical() == 0)
    config.placement = ExpertPlacement::Trivial(shape.num_experts, redundant);
  CHECK_EQ(config.placement.num_physical(), shape.num_experts + redundant);
  return config;
}

}  // namespace

MoeLayer::MoeLayer(MoeLayerConfig config, MoeLayerWeights weights,
                   std::shared_ptr<MoeBackend> backend)
    : backend_(std::move(backend)),
      parts_(backend_->Place(Checked(std::move(config), *backend_), std::move(weights))) {
  ApplyPlacement();
}

void MoeLayer::ApplyPlacement() {
  const ExpertPlacement& placement = parts_->config.placement;
  const Mesh& mesh = backend_->mesh();
  std::vector<int32_t> replicas;
  if (!placement.is_identity())
    replicas = backend_->scatters()
                   ? placement.ReplicasFor(mesh.ep(), mesh.ep_rank(), backend_->options().nodes,
                                           mesh.shape().expert_slots)
                   : placement.CommonReplicas();
  parts_->SetReplicas(std::move(replicas));
  const int layer = parts_->config.layer;
  if (backend_->observer()) backend_->observer()->OnPlacement(layer, placement);
  if (backend_->chooser()) backend_->chooser()->OnPlacement(layer, placement);
}

std::vector<OwnedExpert> MoeLayer::SwitchPlacement(ExpertPlacement placement,
                                                   std::vector<OwnedExpert> experts) {
  CHECK_EQ(placement.num_logical(), parts_->config.placement.num_logical());
  CHECK_EQ(placement.num_physical(), parts_->config.placement.num_physical());
  std::vector<OwnedExpert> previous = parts_->Swap(std::move(experts));
  parts_->config.placement = std::move(placement);
  ApplyPlacement();
  return previous;
}

void MoeLayer::CheckTokens(const MoeTokens& tokens) const {
  const auto groups = tokens.group_tokens, decoding = tokens.group_decode_tokens;
  CHECK_EQ(static_cast<int>(groups.size()), backend_->mesh().dp());
  CHECK_EQ(groups.size(), decoding.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    CHECK_LE(decoding[g], groups[g]);
    CHECK_LE(groups[g], backend_->shape().max_tokens);
  }
}

bool MoeLayer::IsSpared(const MoeTokens& tokens) const {
  return !backend_->mesh().attends() &&
         StreamsExperts(backend_->options(), tokens.group_tokens, tokens.group_decode_tokens);
}

void MoeLayer::Forward(MoeState& state, const float* hidden, const MoeTokens& tokens,
                       float* out) const {
  CheckTokens(tokens);
  if (IsSpared(tokens)) return;
  const auto groups = tokens.group_tokens, decoding = tokens.group_decode_tokens;
  state.streams = StreamsExperts(backend_->options(), groups, decoding);
  const auto run = [&](std::span<const int64_t> counts, int64_t first, bool decode,
                       int64_t routed_before = 0) {
    if (IsEmpty(counts)) return;
    const int64_t skipped = first * parts_->config.hidden;
    state.router_hidden =
        tokens.router_rows ? tokens.router_rows + first * parts_->config.router_width : nullptr;
    Start(state, hidden + skipped, counts, decode, out + skipped);
    SetRecords(state, tokens, first);
    state.routed_before = routed_before;
    while (state.NextRound()) RunRound(state);
    Scatter(state);
  };

  if (std::ranges::equal(groups, decoding)) return run(groups, 0, /*decode=*/true);
  if (!backend_->splits_mixed_batches()) return run(groups, 0, /*decode=*/false);
  run(decoding, 0, /*decode=*/true);
  const int64_t decoded = IsEmpty(decoding) ? 0 : state.lane_tokens;
  std::vector<int64_t>& others = state.other_tokens;
  others.resize(groups.size());
  for (size_t g = 0; g < groups.size(); ++g) others[g] = groups[g] - decoding[g];
  run(others, decoding[backend_->mesh().dp_rank()], /*decode=*/false, decoded);
}

void MoeLayer::SetRecords(MoeState& state, const MoeTokens& tokens, int64_t first) const {
  state.routed_experts =
      tokens.routed_experts ? tokens.routed_experts + first * parts_->config.router.top_k : nullptr;
  state.router_faults = tokens.router_faults.From(first);
  state.first_row = tokens.first_row + first;
}

bool MoeLayer::IsSplit(const MoeTokens& tokens) const {
  return backend_->splits_mixed_batches() && !IsEmpty(tokens.group_decode_tokens) &&
         !std::ranges::equal(tokens.group_tokens, tokens.group_decode_tokens);
}

bool MoeLayer::StartOneRound(MoeState& state, const float* hidden, const MoeTokens& tokens,
                             float* out) const {
  CheckTokens(tokens);
  const bool decode = std::ranges::equal(tokens.group_tokens, tokens.group_decode_tokens);
  if (IsSplit(tokens) || IsEmpty(tokens.group_tokens) || IsSpared(tokens)) return false;
  state.streams =
      StreamsExperts(backend_->options(), tokens.group_tokens, tokens.group_decode_tokens);
  Prepare(state, tokens.group_tokens, decode);
  if (state.rounds != 1) return false;
  state.router_hidden = tokens.router_rows;
  Start(state, hidden, tokens.group_tokens, decode, out);
  SetRecords(state, tokens, 0);
  state.NextRound();
  return true;
}

MoeInputBuffer MoeLayer::InputRows(MoeState& state, const MoeTokens& tokens) const {
  // Scaled rows depend on the router, which runs after the producer of `hidden`.
  if (!backend_->takes_input_rows() || parts_->config.router.scales_input) return {};
  if (IsSplit(tokens) || IsEmpty(tokens.group_tokens) || IsSpared(tokens)) return {};
  Prepare(state, tokens.group_tokens,
          std::ranges::equal(tokens.group_tokens, tokens.group_decode_tokens));
  if (state.rounds != 1 || (state.partitioned && !state.partition.lane_is_local())) return {};
  state.round = {0, state.lane_tokens};
  MoeInputBuffer buffer = backend_->InputRows(state);
  const int64_t begin = state.partitioned ? state.partition.lane_begin() : 0;
  buffer.tokens = {begin, begin + state.lane_tokens};
  state.rows_staged = buffer.rows != nullptr;
  return buffer;
}

void MoeLayer::Prepare(MoeState& s, std::span<const int64_t> group_tokens, bool decode) const {
  const Mesh& mesh = backend_->mesh();
  s.width = parts_->config.hidden;
  s.router_width = parts_->config.router_width > 0 ? parts_->config.router_width : s.width;
  s.lane_tokens = group_tokens[mesh.dp_rank()];
  s.decode = decode;
  s.routed_experts = nullptr;
  s.router_faults = {};
  s.first_row = s.routed_before = 0;
  s.own = {0, s.lane_tokens};
  s.lanes.assign(1, s.lane_tokens);
  s.partitioned = backend_->scatters();
  if (s.partitioned) {
    s.partition.Reset(mesh, group_tokens);
    s.own = s.partition.own(mesh.tp_rank());
    s.lane_tokens = s.partition.lane_tokens();
    s.lanes.assign(mesh.ep(), 0);
    for (int rank = 0; rank < mesh.tp(); ++rank)
      s.lanes[rank / mesh.moe_tp()] += s.partition.own(rank).size();
  }
  const int64_t longest = s.partitioned ? s.partition.longest_lane() : s.lane_tokens;
  backend_->SelectExchange(longest, s);
  s.rounds = (longest + s.max_round_tokens - 1) / s.max_round_tokens;
  s.rounds_done = 0;
  s.round = {};
}

void MoeLayer::Start(MoeState& s, const float* hidden, std::span<const int64_t> group_tokens,
                     bool decode, float* out) const {
  Prepare(s, group_tokens, decode);
  s.hidden = hidden;
  if (parts_->config.router_width == 0) s.router_hidden = hidden;
  s.out = out;
  backend_->Start(*parts_, s);
  s.times = {};
  {
    const StageClock clock(s, &MoeTimes::dispatch);
    Gather(s);
  }
  s.stage = BatchStage::kStarted;
}

int64_t MoeTimes::*MoeLayer::PartOf(BatchStage stage) {
  switch (stage) {
    case BatchStage::kSent:
    case BatchStage::kArrived:
      return &MoeTimes::dispatch;
    case BatchStage::kPermuted:
    case BatchStage::kComputed:
    case BatchStage::kReady:
    case BatchStage::kDown:
      return &MoeTimes::experts;
    case BatchStage::kReturned:
    case BatchStage::kEnded:
      return &MoeTimes::combine;
    case BatchStage::kStarted:
    case BatchStage::kRouted:
      return nullptr;
  }
  return nullptr;
}

void MoeLayer::RunRound(MoeState& s) const {
  Route(s);
  BeginDispatch(s);
  if (s.in_first_round()) RunShared(s);
  EndDispatch(s);
  PrePermute(s);
  RunExperts(s);
  PostPermute(s);
  BeginCombine(s);
  RunDown(s);
  EndCombine(s);
}

void MoeLayer::Abort(MoeState& s) const {
  while (s.stage != BatchStage::kEnded) {
    switch (s.stage) {
      case BatchStage::kStarted:
        Route(s);
        break;
      case BatchStage::kRouted:
        BeginDispatch(s);
        break;
      case BatchStage::kSent:
        EndDispatch(s);
        break;
      case BatchStage::kArrived:
        PrePermute(s);
        break;
      case BatchStage::kPermuted:
        Run(&MoeBackend::SkipExperts, BatchStage::kComputed, s);
        break;
      case BatchStage::kComputed:
        PostPermute(s);
        break;
      case BatchStage::kReady:
        BeginCombine(s);
        break;
      case BatchStage::kReturned:
        RunDown(s);
        break;
      case BatchStage::kDown:
        CHECK(s.ends_combine());
        EndCombine(s);
        break;
      case BatchStage::kEnded:
        break;
    }
  }
}

std::span<const size_t> MoeLayer::PartSizes(MoeState& s, int first, int ranks, size_t size) const {
  s.part_sizes.resize(ranks);
  for (int i = 0; i < ranks; ++i)
    s.part_sizes[i] = static_cast<size_t>(s.partition.own(first + i).size()) * size;
  return s.part_sizes;
}

void MoeLayer::Gather(MoeState& s) const {
  const Mesh& mesh = backend_->mesh();
  if (!s.partitioned) {
    s.x = s.hidden;
    s.router_x = s.router_hidden;
    s.y = s.out;
    return;
  }
  s.y = mesh.moe_tp() == 1 ? s.out + s.own.begin * s.width : backend_->LaneSums(s);
  if (s.partition.lane_is_local()) {
    s.x = s.hidden + s.partition.lane_begin() * s.width;
    s.router_x = s.router_hidden + s.partition.lane_begin() * s.router_width;
    return;
  }
  const auto gather = [&](const float* own, int64_t width, float* lane) {
    CHECK(lane != nullptr || s.lane_tokens == 0);
    backend_->groups().moe_tp->AllGatherV(
        own, lane,
        PartSizes(s, mesh.ep_rank() * mesh.moe_tp(), mesh.moe_tp(), width * sizeof(float)));
    return lane;
  };
  s.MarkStage(&MoeTimes::dispatch);
  s.x = s.router_x = gather(s.own_x(), s.width, backend_->GatheredRows(s));
  if (parts_->config.router_width > 0)
    s.router_x = gather(s.router_hidden + s.own.begin * s.router_width, s.router_width,
                        backend_->GatheredRouterRows(s));
  s.MarkStage(nullptr);
}

void MoeLayer::Scatter(MoeState& s) const {
  {
    const StageClock clock(s, &MoeTimes::combine);
    s.MarkStage(&MoeTimes::combine);
    ScatterSums(s);
    s.MarkStage(nullptr);
  }
  if (s.timed && backend_->observer()) backend_->observer()->OnTimes(s.pass, s.times);
}

void MoeLayer::ScatterSums(MoeState& s) const {
  const Mesh& mesh = backend_->mesh();
  const RankGroups& groups = backend_->groups();
  float* own_out = s.out + s.own.begin * s.width;
  if (s.partitioned && mesh.moe_tp() > 1)
    groups.moe_tp->ReduceScatterV(
        s.y, own_out, PartSizes(s, mesh.ep_rank() * mesh.moe_tp(), mesh.moe_tp(), s.width));
  backend_->AddShared(*parts_, s, own_out);
  if (!s.partitioned) {
    // Each rank has partial sums: of the outputs of its experts (or slices of experts), and of its
    // slice of the shared expert.
    if (mesh.tp() > 1) groups.tp->AllReduceSum(own_out, s.own.size() * s.width);
    return;
  }
  if (mesh.attn_tp() == 1) return;
  const int first = mesh.dp_rank() * mesh.attn_tp();
  groups.attn_tp->AllGatherV(own_out, s.out,
                             PartSizes(s, first, mesh.attn_tp(), s.width * sizeof(float)));
  if (!s.routed_experts) return;
  const int k = parts_->config.router.top_k;
  groups.attn_tp->AllGatherV(s.routed_experts + s.own.begin * k, s.routed_experts,
                             PartSizes(s, first, mesh.attn_tp(), k * sizeof(int32_t)));
}

}  // namespace switchyard
