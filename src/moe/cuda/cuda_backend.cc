#include "moe/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"
#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/dispatchers/arena_exchange.h"
#include "moe/cuda/placement/expert_moves.h"
#include "moe/cuda/router/select_experts.h"
#include "moe/dispatchers/builtin.h"
#include "moe/dispatchers/rounds.h"
#include "moe/dispatchers/token_partition.h"
#include "moe/gpu_options.h"
#include "moe/gpu_pass_memory.h"
#include "moe/runners/runner_names.h"
#include "moe/stream_experts.h"

namespace switchyard::cuda {
namespace {

// The options for a GPU: rows are exchanged in the type that the GPU's experts read.
MoeOptions ForDevice(MoeOptions options, DType dtype) {
  options.row_dtype = dtype;
  if (dtype == DType::kF32) options.fp8_group_activations = false;
  return options;
}

// The modes of the exchange, in allocation order.
ExchangeModes ModesOf(const GpuExchangeBackend& exchange, const MoeOptions& options,
                      const ExchangeShape& shape) {
  return exchange.modes ? exchange.modes(options, shape)
                        : ExchangeModes{.normal_tokens = shape.max_tokens};
}

// Whether rows are sent to other ranks: the backend has an exchange, and there are several EP
// ranks.
bool RowsAreExchanged(const GpuExchangeBackend& exchange, const ExchangeShape& shape) {
  return exchange.make && shape.ep > 1;
}

// EP groups are strided over the whole world (comm/mesh.h): if the world spans hosts, so does every
// EP group.
bool SpansHosts(const MeshShape& mesh, const DeviceMoeHosts& hosts) {
  return hosts.ranks_per_host > 0 && hosts.ranks_per_host < mesh.tp;
}

ExchangeConfig ConfigOf(const ExchangeShape& shape, const DeviceMoeHosts& hosts, int passes,
                        bool low_latency, int64_t tokens) {
  return {.ranks = shape.ep,
          .hidden = shape.hidden,
          .top_k = shape.k,
          .max_tokens = tokens,
          .dispatched = shape.row_format,
          .combined = shape.output_dtype,
          .sum_by_rank = shape.combine_rows == CombineRows::kRank,
          .low_latency = low_latency,
          .in_flight = passes,
          .recorded_tokens = hosts.recorded_tokens};
}

DeviceMemory ToDevice(int32_t value) {
  DeviceMemory memory(sizeof value);
  CopyToDevice(memory.data(), &value, sizeof value, "number of rows");
  return memory;
}

DeviceMemory Memory(int64_t bytes) {
  return bytes > 0 ? DeviceMemory(static_cast<size_t>(bytes)) : DeviceMemory();
}

}  // namespace

void ProductBytes::Cover(const ProductBytes& other) {
  a = std::max(a, other.a);
  a_scales = std::max(a_scales, other.a_scales);
  gate_up = std::max(gate_up, other.gate_up);
  middle = std::max(middle, other.middle);
  middle_scales = std::max(middle_scales, other.middle_scales);
}

ProductBuffers ProductBytes::Allocate() const {
  return {.a = Memory(a),
          .a_scales = Memory(a_scales),
          .gate_up = Memory(gate_up),
          .middle = Memory(middle),
          .middle_scales = Memory(middle_scales)};
}

size_t CudaMoeBackend::PeerBytes(const MoeOptions& options_in, const MoeShape& shape,
                                 const MeshShape& mesh, DType dtype, const DeviceMoeHosts& hosts,
                                 const GpuMoeBackends& backends) {
  const MoeOptions options = ForDevice(options_in, dtype);
  CheckGpuOptions(options, shape, mesh, backends);
  const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
  const GpuExchangeBackend& backend = backends.exchanges.Find(options.a2a_backend);
  if (!RowsAreExchanged(backend, exchange) || options.host_experts) return 0;
  const ExchangeModes modes = ModesOf(backend, options, exchange);
  const auto bytes = [&](bool low_latency, int64_t tokens) {
    if (tokens == 0) return size_t{0};
    return backend.peer_bytes(ConfigOf(exchange, hosts, options.passes, low_latency, tokens),
                              SpansHosts(mesh, hosts));
  };
  return bytes(false, modes.normal_tokens) + bytes(true, modes.low_latency_tokens);
}

CudaMoeBackend::CudaMoeBackend(const MoeOptions& options, const MoeShape& shape,
                               const DeviceMoeContext& context, const GpuMoeBackends& backends)
    : MoeBackend(ForDevice(options, CudaDevice::From(*context.device).options().dtype), shape,
                 context.mesh),
      context_(context),
      device_(CudaDevice::From(*context.device)),
      exchange_shape_(ExchangeShapeOf(options_, shape, context.mesh.shape())),
      experts_(shape.num_experts + options.num_redundant_experts, context.mesh.ep(),
               options.waterfill && shape.has_shared, context.mesh.shape().expert_slots),
      scatters_(ScattersTokens(options, context.mesh.shape())),
      ep_group_(context.mesh.EpGroup()),
      exchange_((CheckGpuOptions(options_, shape, mesh_.shape(), backends),
                 backends.exchanges.Find(options_.a2a_backend))),
      runner_(backends.runners.Find(ResolveGpuRunner(options_.runner_backend, backends)).make()) {
  CHECK(shape.hidden > 0 && shape.num_experts > 0 && shape.top_k > 0 && shape.max_tokens > 0);
  FindPermute(backends);
  MakeExchanges();
  if (options_.passes > 1 || options_.single_batch_overlap) sends_.emplace(/*urgent=*/true);
  const bool exchanges = normal_ || low_latency_;
  if (exchanges && options_.single_batch_overlap && mesh_.rank() == 0 &&
      SpansHosts(mesh_.shape(), context_.hosts))
    LOG_INFO("--enable-single-batch-overlap has no effect here: rows are sent over NCCL");
  if (!exchange_.make) {
    std::vector<int32_t> ids(experts_.size());
    for (int e = 0; e < experts_.size(); ++e) ids[e] = experts_.LocalIdOn(mesh_.ep_rank(), e);
    local_ids_ = UploadIds(ids);
  }
  if (shared_dispatched()) {
    std::vector<int32_t> owners(experts_.size());
    for (int e = 0; e < experts_.size(); ++e) owners[e] = experts_.Owner(e);
    owners_ = UploadIds(owners);
  }
  PlanChunks();
}

CudaMoeBackend::~CudaMoeBackend() = default;

// Exchanged rows arrive in the normal layout, also in low-latency mode (DispatchedRows).
void CudaMoeBackend::FindPermute(const GpuMoeBackends& backends) {
  const DispatchLayout from = RowsAreExchanged(exchange_, exchange_shape_)
                                  ? DispatchLayout::kNormal
                                  : DispatchLayout::kStandard;
  const GpuPermute* permute = backends.permutes.Find(from, runner_->layout());
  if (!permute)
    throw Invalid(
        "--moe-a2a-backend {} delivers layout {}, which no permute of GPUs converts to layout {} "
        "of --moe-runner-backend {}; available permutes: {}",
        options_.a2a_backend, Name(from), Name(runner_->layout()), options_.runner_backend,
        backends.permutes.Pairs());
  permute_ = *permute;
}

void CudaMoeBackend::MakeExchanges() {
  const ExchangeModes modes = ModesOf(exchange_, options_, exchange_shape_);
  CHECK(modes.normal_tokens > 0 || modes.low_latency_tokens > 0);
  normal_tokens_ = modes.normal_tokens > 0 ? modes.normal_tokens : exchange_shape_.max_tokens;
  low_latency_tokens_ = modes.low_latency_tokens;
  if (!RowsAreExchanged(exchange_, exchange_shape_)) return;
  if (modes.normal_tokens > 0) normal_ = MakeExchange(false, normal_tokens_);
  if (modes.low_latency_tokens > 0) low_latency_ = MakeExchange(true, low_latency_tokens_);
}

std::unique_ptr<RowExchange> CudaMoeBackend::MakeExchange(bool low_latency, int64_t tokens) const {
  ExchangeConfig config =
      ConfigOf(exchange_shape_, context_.hosts, options_.passes, low_latency, tokens);
  config.rank = mesh_.ep_rank();
  config.world_ranks = ep_group_.data();
  if (options_.host_experts) {
    CHECK(context_.link != nullptr && !low_latency);
    const PassRounds rounds = RoundsOfPass(options_, exchange_shape_);
    CHECK_EQ(rounds.combine_tokens, tokens);
    return std::make_unique<ArenaExchange>(config, ArenaOfDeepEpNormal(rounds, exchange_shape_),
                                           experts_, *context_.link);
  }
  CHECK(context_.peers != nullptr);
  return exchange_.make({.config = config,
                         .experts = experts_,
                         .peers = *context_.peers,
                         .group = groups().ep,
                         .spans_hosts = SpansHosts(mesh_.shape(), context_.hosts)});
}

void CudaMoeBackend::ReserveMoves(int layers) {
  const auto placed = static_cast<int>(layers_.size());
  const int held = layers < 0 ? placed : std::min(layers, placed);
  mover_ = std::make_unique<ExpertMover>(device_, spare_bytes_, held * local_experts());
}

ExpertStream& CudaMoeBackend::StreamFor(const DeviceExperts& layer,
                                        const kernels::ExpertWeights& expert) const {
  if (!stream_experts_)
    stream_experts_ =
        std::make_unique<ExpertStream>(layer, expert, StreamGroup(shape_.num_experts));
  stream_experts_->CheckFits(layer);
  return *stream_experts_;
}

RoutingLogShape CudaMoeBackend::LogShape() const {
  return {.layers = static_cast<int>(layers_.size()),
          .experts = shape_.num_experts,
          .physical = shape_.num_experts + options_.num_redundant_experts,
          .local = local_experts(),
          .top_k = shape_.top_k,
          .max_rows = shape_.max_tokens,
          .tokens = observer_->needs_tokens(),
          .dispatch = observer_->needs_dispatch()};
}

void CudaMoeBackend::SelectExchange(int64_t longest, MoeState& state) {
  auto& s = static_cast<CudaMoeState&>(state);
  if (s.streams) {  // no row leaves this GPU
    s.exchange = nullptr;
    s.max_round_tokens = normal_tokens_;
    return;
  }
  const bool low_latency =
      low_latency_ && (!normal_ || (s.decode && longest <= low_latency_tokens_));
  s.exchange = low_latency ? low_latency_.get() : normal_.get();
  s.max_round_tokens = low_latency ? low_latency_tokens_ : normal_tokens_;
}

int64_t CudaMoeBackend::RoundCapacity() const {
  return std::max(normal_ || !low_latency_ ? normal_tokens_ : 0,
                  low_latency_ ? low_latency_tokens_ : 0);
}

int64_t CudaMoeBackend::ArrivedCapacity() const {
  return gathers() || normal_ || low_latency_ ? sources() * RoundCapacity() : RoundCapacity();
}

int CudaMoeBackend::OrderedExperts() const {
  return may_stream() ? std::max(local_experts(), StreamGroup(shape_.num_experts))
                      : local_experts();
}

void CudaMoeBackend::PlanChunks() {
  const int64_t k = slots_per_token(), ep = mesh_.ep();
  const int experts = OrderedExperts();
  const int64_t slots = ArrivedCapacity() * std::min<int64_t>(k, experts);
  ordered_rows_ = MaxOrderedRows(slots, experts);
  // Under even load, each rank receives 1 / ep of all slots. A chunk has space for twice that
  // number. The host also launches the kernels of further chunks, but these usually have no rows.
  const int64_t usual = 2 * CeilDiv((scatters_ ? sources() : 1) * RoundCapacity() * k, ep) +
                        experts * kGroupBlockRows;
  chunk_rows_ = std::min(ordered_rows_, RoundUp(std::max(usual, kMinChunkRows), kGroupBlockRows));
}

// GpuPassBytes (moe/gpu_pass_memory.cc) computes the same sizes for memory plans.
std::unique_ptr<MoeState> CudaMoeBackend::MakeState(int slot) {
  CHECK_LT(slot, options_.passes);
  auto state = std::make_unique<CudaMoeState>(slot);
  MoeBuffers& b = state->buffers;
  const int64_t hidden = shape_.hidden, k = slots_per_token();
  const int64_t round = RoundCapacity(), arrived = ArrivedCapacity();
  const int64_t lane = exchange_shape_.max_tokens;
  b.logits = Memory(round * shape_.num_logits() * 4);
  for (DeviceMemory* ids : {&b.logical, &b.ids, &b.weights})
    *ids = Memory(round * shape_.top_k * 4);
  if (shape_.scales_input) b.scaled = Memory(round * hidden * 4);
  if (shape_.zero_experts > 0) b.zero_weights = Memory(lane * 4);
  if (shared_dispatched()) {
    for (DeviceMemory* ids : {&b.wide_ids, &b.wide_weights}) *ids = Memory(round * k * 4);
    b.shared_gate = Memory(round * 4);
  }
  if (scatters_ && mesh_.moe_tp() > 1) {
    b.gathered = Memory(lane * hidden * 4);
    b.gathered_router = Memory(lane * shape_.widest_router_row() * 4);
    b.lane_sums = Memory(lane * hidden * 4);
  }
  if (gathers()) {
    b.all_x = Memory(arrived * hidden * 4);
    b.all_sums = Memory(arrived * hidden * 4);
    for (DeviceMemory* ids : {&b.all_ids, &b.all_local, &b.all_weights})
      *ids = Memory(arrived * k * 4);
  }
  b.position = Memory(arrived * k * 4);
  b.offsets = Memory((OrderedExperts() + 1) * 4);
  b.counts = Memory(OrderedExperts() * 4);
  b.block_groups = Memory(RoundUp(ordered_rows_, chunk_rows_) / kGroupBlockRows * 4);
  b.order_arrived = Memory(sizeof(uint32_t));
  b.order_scratch = Memory(RowOrderScratch(arrived * k, OrderedExperts()) * 4);
  if (may_stream()) b.group_ids = Memory(arrived * k * 4);
  b.products = product_bytes_.Allocate();
  b.shared_products = shared_product_bytes_.Allocate();
  b.outputs = Memory(output_bytes_);
  if (has_shared_) {
    const int64_t own = CeilDiv(shape_.max_tokens, scatters_ ? mesh_.attn_tp() : 1);
    b.shared_y = Memory(own * hidden * 4);
    b.shared_gate = Memory(own * 4);
  }
  if (options_.host_experts) {
    state->pass_rows = ToDevice(std::numeric_limits<int32_t>::max());
    state->device = context_.device;
  }
  if (chooser_)
    state->choice = std::make_unique<HostChoice>(*chooser_, round, shape_.top_k, stream());
  if (observer_)
    state->log = std::make_unique<RoutingLog>(*observer_, layers_, LogShape(), device_);
  return state;
}

void CudaMoeBackend::ReserveExperts(const DeviceExperts& experts) {
  product_bytes_.Cover(BytesOf(experts, chunk_rows_));
  spare_bytes_ = std::max(spare_bytes_, ExpertMover::BlockBytes(experts));
  output_bytes_ = std::max(output_bytes_, RoundUp(ordered_rows_, chunk_rows_) * shape_.hidden *
                                              ElementBytes(experts.arithmetic.output));
}

void CudaMoeBackend::ReserveShared(const DeviceExperts& shared) {
  const int64_t own = CeilDiv(shape_.max_tokens, scatters_ ? mesh_.attn_tp() : 1);
  has_shared_ = true;
  product_bytes_.Cover(BytesOf(shared, RoundUp(own, kGroupBlockRows)));
  if (device_.options().fused)
    shared_product_bytes_.Cover(
        BytesOf(shared, RoundUp(std::min(own, kMaxTokensOnSideStream), kGroupBlockRows)));
}

ProductBytes CudaMoeBackend::BytesOf(const DeviceExperts& experts, int64_t rows) const {
  const int64_t hidden = shape_.hidden, intermediate = experts.intermediate;
  const int64_t input = ElementBytes(experts.arithmetic.input);
  const bool fp8 = experts.arithmetic.input == ElementType::kFp8;
  return {.a = rows * hidden * input,
          .a_scales = fp8 ? rows * CeilDiv(hidden, kFp8BlockSize) * 4 : 0,
          .gate_up = rows * experts.gate_up.n * ElementBytes(experts.arithmetic.output),
          .middle = rows * intermediate * input,
          .middle_scales = fp8 ? rows * CeilDiv(intermediate, kFp8BlockSize) * 4 : 0};
}

std::unique_ptr<MoeLayerParts> CudaMoeBackend::Place(MoeLayerConfig config,
                                                     MoeLayerWeights weights) {
  const RouterConfig& router = config.router;
  CHECK(router.num_groups >= 1 && router.num_experts % router.num_groups == 0);
  CHECK_LE(router.num_groups, kMaxRouterGroups);
  CHECK(!router.scales_input || (shape_.scales_input && router.top_k == 1));
  CHECK_EQ(router.zero_experts, shape_.zero_experts);
  if (router.by_token) {
    CHECK(shape_.by_token);
    CHECK_EQ(config.router_width, shape_.widest_router_row());
  } else {
    CHECK_EQ(config.router_width, shape_.router_width);
  }
  layers_.push_back(config.layer);
  auto parts = std::make_unique<CudaMoeParts>(std::move(config), weights, *this,
                                              static_cast<int>(layers_.size()) - 1);
  ReserveExperts(parts->experts);
  if (parts->shared) ReserveShared(*parts->shared);
  return parts;
}

// Returns the branch on which the shared expert overlaps the other stages, or null if it does not
// overlap them. It overlaps if the rank has few tokens. The branch forks and joins in the first
// round. It is not used while another pass is in flight, because the schedule then decides when the
// shared expert runs.
const Branch* CudaMoeBackend::SharedBranch(const CudaMoeParts& parts,
                                           const CudaMoeState& state) const {
  const int64_t own = state.own.size();
  const bool overlaps = parts.shared && own > 0 && state.in_first_round() && !state.overlaps &&
                        device_.options().fused && own <= kMaxTokensOnSideStream;
  return overlaps ? &shared_branch_ : nullptr;
}

void CudaMoeBackend::PlanRound(const CudaMoeParts& parts, CudaMoeState& s) const {
  const int k = slots_per_token();
  int64_t tokens = s.round.size();
  if (s.exchange || gathers()) {
    tokens = 0;
    for (int source = 0; source < sources(); ++source) tokens += s.InRound(s.lanes[source]);
  }
  s.slots = tokens * std::min(k, local_experts());
  s.expected_slots = CeilDiv(tokens * k, mesh_.ep());
  s.ordered_rows = MaxOrderedRows(s.slots, parts.experts.experts);
  s.down_parts = 1;
  s.sends_on_side_stream = sends_ && s.exchange && s.exchange->overlaps() && s.overlaps;
  if (!options_.single_batch_overlap || !s.exchange || !s.exchange->overlaps()) return;
  if (s.exchange->combines_in_parts())
    s.down_parts = context_.down_parts > 0 ? context_.down_parts
                                           : runner_->DownParts(parts.experts, ChunkAt(s, 0));
  const bool shared_on_stream =
      parts.shared && s.own.size() > 0 && s.in_first_round() && !SharedBranch(parts, s);
  s.sends_on_side_stream = s.sends_on_side_stream || SplitsDown(s) || shared_on_stream;
}

cudaStream_t CudaMoeBackend::ForkSends(const CudaMoeState& state) const {
  if (!state.sends_on_side_stream) return stream();
  sends_->Fork(stream());
  return sends_->stream();
}

void CudaMoeBackend::MarkSent(const CudaMoeState& state) const {
  if (state.sends_on_side_stream) state.sent.Record(sends_->stream());
}

void CudaMoeBackend::AwaitSent(const CudaMoeState& state) const {
  if (state.sends_on_side_stream)
    Check(cudaStreamWaitEvent(stream(), state.sent.get()), "wait for the sends of an exchange");
}

}  // namespace switchyard::cuda

namespace switchyard {

std::shared_ptr<MoeBackend> MakeCudaMoe(const MoeOptions& options, const MoeShape& shape,
                                        const DeviceMoeContext& context) {
  const GpuMoeBackends builtin = context.backends ? GpuMoeBackends() : BuiltinGpuBackends();
  return std::make_shared<cuda::CudaMoeBackend>(
      options, shape, context, context.backends ? context.backends->gpus : builtin);
}

size_t CudaMoePeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        DType dtype, const DeviceMoeHosts& hosts, const MoeBackends* backends) {
  return cuda::CudaMoeBackend::PeerBytes(options, shape, mesh, dtype, hosts,
                                         backends ? backends->gpus : BuiltinGpuBackends());
}

}  // namespace switchyard
