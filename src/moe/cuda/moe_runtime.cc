#include "moe/cuda/moe_runtime.h"

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/grouped_gemm.h"
#include "moe/cuda/exchange.h"
#include "moe/cuda/moe_layer.h"
#include "moe/cuda/nccl_exchange.h"
#include "moe/cuda/select_experts.h"
#include "moe/dispatchers/rounds.h"
#include "moe/gpu_options.h"
#include "moe/token_partition.h"

namespace switchyard::cuda {
namespace {

// Minimum chunk size in rows, if there are as many.
constexpr int64_t kMinChunkRows = 16384;

// Maximum tokens of a rank whose shared expert runs on its own stream. With so few tokens, router,
// selection and row ordering leave most of the GPU idle. 4096 and 8192 tokens gained nothing
// (measured).
constexpr int64_t kMaxTokensOnSideStream = 2048;

// Grid size of exchange kernels if ranks share a GPU, as in tests: their kernels wait for one
// another.
constexpr int kBlocksOfSharedGpu = 8;

int64_t RoundUp(int64_t n, int64_t to) { return CeilDiv(n, to) * to; }

// The options for a GPU: rows travel in the type that its experts read.
MoeOptions ForDevice(MoeOptions options, DType dtype) {
  options.row_dtype = dtype;
  if (dtype == DType::kF32) options.fp8_group_activations = false;
  return options;
}

// The exchanges of these options, in allocation order.
struct ExchangePlan {
  bool normal = false, low_latency = false;
  int64_t normal_tokens = 0, low_latency_tokens = 0;
};
ExchangePlan PlanExchanges(const MoeOptions& options, const ExchangeShape& shape) {
  ExchangePlan plan;
  const bool travels = options.a2a_backend == "deepep" && shape.ep > 1;
  plan.normal_tokens = options.a2a_backend == "deepep" && options.deepep_mode != "low_latency"
                           ? TokensPerRound(options, shape)
                           : shape.max_tokens;
  plan.low_latency_tokens =
      std::min<int64_t>(shape.max_tokens, options.max_dispatch_tokens_per_rank);
  plan.normal = travels && options.deepep_mode != "low_latency";
  plan.low_latency = travels && options.deepep_mode != "normal";
  return plan;
}

// EP groups are strided over the whole world (comm/mesh.h): if the world spans hosts, so does every
// EP group.
bool SpansHosts(const MeshShape& mesh, const DeviceMoeHosts& hosts) {
  return hosts.ranks_per_host > 0 && hosts.ranks_per_host < mesh.tp;
}

ExchangeConfig ConfigOf(const ExchangeShape& shape, const DeviceMoeHosts& hosts, bool low_latency,
                        int64_t tokens) {
  return {.ranks = shape.ep,
          .hidden = shape.hidden,
          .top_k = shape.k,
          .max_tokens = tokens,
          .dispatched = shape.row_format,
          .combined = shape.output_dtype,
          .sum_by_rank = shape.combine_rows == CombineRows::kRank,
          .low_latency = low_latency,
          .in_flight = 1,
          .recorded_tokens = hosts.recorded_tokens};
}

void Grow(DeviceMemory* memory, int64_t bytes) {
  if (bytes <= static_cast<int64_t>(memory->bytes())) return;
  *memory = DeviceMemory();  // free first, so that both need not fit
  *memory = DeviceMemory(bytes);
}

int64_t BytesOf(ElementType type) {
  return type == ElementType::kFp8 ? 1 : type == ElementType::kBF16 ? 2 : 4;
}

}  // namespace

size_t CudaMoeRuntime::PeerBytes(const MoeOptions& options_in, const MoeShape& shape,
                                 const MeshShape& mesh, DType dtype, const DeviceMoeHosts& hosts) {
  const MoeOptions options = ForDevice(options_in, dtype);
  CheckGpuOptions(options, shape, mesh);
  const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
  const ExchangePlan plan = PlanExchanges(options, exchange);
  const auto bytes = SpansHosts(mesh, hosts) ? NcclExchange::PeerBytes : Exchange::PeerBytes;
  size_t sum = 0;
  if (plan.normal) sum += bytes(ConfigOf(exchange, hosts, false, plan.normal_tokens));
  if (plan.low_latency) sum += bytes(ConfigOf(exchange, hosts, true, plan.low_latency_tokens));
  return sum;
}

CudaMoeRuntime::CudaMoeRuntime(const MoeOptions& options, const MoeShape& shape,
                               const DeviceMoeContext& context)
    : context_(context),
      device_(CudaDevice::From(*context.device)),
      options_(ForDevice(options, device_.options().dtype)),
      shape_(shape),
      exchange_shape_(ExchangeShapeOf(options_, shape, context.mesh.shape())),
      experts_(shape.num_experts + options.num_redundant_experts, context.mesh.ep(),
               /*shared_dispatched=*/false),
      scatters_(ScattersTokens(options, context.mesh.shape())),
      ep_group_(context.mesh.EpGroup()) {
  CHECK(shape.hidden > 0 && shape.num_experts > 0 && shape.top_k > 0 && shape.max_tokens > 0);
  CheckGpuOptions(options_, shape, mesh().shape());
  const ExchangePlan plan = PlanExchanges(options_, exchange_shape_);
  normal_tokens_ = plan.normal_tokens;
  low_latency_tokens_ = plan.low_latency_tokens;
  if (plan.normal) normal_ = MakeExchange(false, normal_tokens_);
  if (plan.low_latency) low_latency_ = MakeExchange(true, low_latency_tokens_);
  ReserveRows();
}

std::unique_ptr<RowExchange> CudaMoeRuntime::MakeExchange(bool low_latency, int64_t tokens) const {
  CHECK(context_.peers != nullptr);
  ExchangeConfig config = ConfigOf(exchange_shape_, context_.hosts, low_latency, tokens);
  config.rank = mesh().ep_rank();
  config.world_ranks = ep_group_.data();
  if (SpansHosts(mesh().shape(), context_.hosts))
    return std::make_unique<NcclExchange>(config, experts_, *context_.peers,
                                          NcclGroup::From(groups().ep));
  if (!context_.peers->HasDistinctGpus(ep_group_)) config.blocks = kBlocksOfSharedGpu;
  return std::make_unique<Exchange>(config, experts_, *context_.peers);
}

RowExchange* CudaMoeRuntime::ExchangeFor(bool decode, int64_t longest_lane) const {
  if (!normal_) return low_latency_.get();
  return low_latency_ && decode && longest_lane <= low_latency_tokens_ ? low_latency_.get()
                                                                       : normal_.get();
}

int64_t CudaMoeRuntime::RoundTokens(const RowExchange* exchange) const {
  return exchange && exchange == low_latency_.get() ? low_latency_tokens_ : normal_tokens_;
}

// Reserves the buffers whose sizes depend on token counts only.
void CudaMoeRuntime::ReserveRows() {
  const int64_t hidden = shape_.hidden, k = shape_.top_k, ep = mesh().ep();
  const int64_t round = std::max(normal_ || !low_latency_ ? normal_tokens_ : 0,
                                 low_latency_ ? low_latency_tokens_ : 0);
  const int64_t lane = exchange_shape_.max_tokens;
  const bool sees_all = gathers() || normal_ || low_latency_;
  const int64_t arrived = sees_all ? ep * round : round;
  const int64_t slots = arrived * std::min<int64_t>(k, local_experts());
  ordered_rows_ = MaxOrderedRows(slots, local_experts());
  // Under even load every rank receives k / ep of a row's slots. Chunks cover twice that; rows
  // beyond it need further GEMM runs, which are usually empty.
  const int64_t usual =
      2 * CeilDiv((scatters_ ? ep : 1) * round * k, ep) + local_experts() * kGroupBlockRows;
  chunk_rows_ = std::min(ordered_rows_, RoundUp(std::max(usual, kMinChunkRows), kGroupBlockRows));

  Grow(&buffers_.logits, round * shape_.num_experts * 4);
  for (DeviceMemory* ids : {&buffers_.logical, &buffers_.ids, &buffers_.weights})
    Grow(ids, round * k * 4);
  if (scatters_ && mesh().moe_tp() > 1) {
    Grow(&buffers_.gathered, lane * hidden * 4);
    Grow(&buffers_.lane_sums, lane * hidden * 4);
  }
  if (gathers()) {
    Grow(&buffers_.all_x, arrived * hidden * 4);
    Grow(&buffers_.all_sums, arrived * hidden * 4);
    for (DeviceMemory* ids : {&buffers_.all_ids, &buffers_.all_local, &buffers_.all_weights})
      Grow(ids, arrived * k * 4);
  }
  Grow(&buffers_.position, arrived * k * 4);
  Grow(&buffers_.offsets, (local_experts() + 1) * 4);
  Grow(&buffers_.counts, local_experts() * 4);
  Grow(&buffers_.block_groups, RoundUp(ordered_rows_, chunk_rows_) / kGroupBlockRows * 4);
  Grow(&buffers_.order_arrived, sizeof(uint32_t));
  Grow(&buffers_.order_scratch, RowOrderScratch(arrived * k, local_experts()) * 4);
}

void CudaMoeRuntime::ReserveExperts(const DeviceExperts& experts) {
  ReserveProducts(experts, chunk_rows_, &buffers_.products);
  Grow(&buffers_.outputs,
       RoundUp(ordered_rows_, chunk_rows_) * shape_.hidden * BytesOf(experts.arithmetic.output));
}

void CudaMoeRuntime::ReserveShared(const DeviceExperts& shared) {
  const int64_t own = CeilDiv(shape_.max_tokens, scatters_ ? mesh().attn_tp() : 1);
  ReserveProducts(shared, RoundUp(own, kGroupBlockRows), &buffers_.products);
  if (device_.options().fused)
    ReserveProducts(shared, RoundUp(std::min(own, kMaxTokensOnSideStream), kGroupBlockRows),
                    &buffers_.beside);
  Grow(&buffers_.shared_y, own * shape_.hidden * 4);
  Grow(&buffers_.shared_gate, own * 4);
}

const Branch* CudaMoeRuntime::SideStreamFor(int64_t own_tokens) const {
  return device_.options().fused && own_tokens <= kMaxTokensOnSideStream ? &beside_ : nullptr;
}

void CudaMoeRuntime::ReserveProducts(const DeviceExperts& experts, int64_t rows,
                                     ProductBuffers* buffers) const {
  const int64_t hidden = shape_.hidden, intermediate = experts.intermediate;
  const int64_t input = BytesOf(experts.arithmetic.input);
  Grow(&buffers->a, rows * hidden * input);
  Grow(&buffers->gate_up, rows * 2 * intermediate * BytesOf(experts.arithmetic.output));
  Grow(&buffers->middle, rows * intermediate * input);
  if (experts.arithmetic.input != ElementType::kFp8) return;
  Grow(&buffers->a_scales, rows * CeilDiv(hidden, kFp8BlockSize) * 4);
  Grow(&buffers->middle_scales, rows * CeilDiv(intermediate, kFp8BlockSize) * 4);
}

std::unique_ptr<MoeBlock> CudaMoeRuntime::MakeLayer(MoeLayerConfig config,
                                                    const MoeLayerWeights& weights) {
  return std::make_unique<CudaMoeLayer>(std::move(config), weights, *this);
}

}  // namespace switchyard::cuda

namespace switchyard {

std::unique_ptr<DeviceMoe> MakeCudaMoe(const MoeOptions& options, const MoeShape& shape,
                                       const DeviceMoeContext& context) {
  return std::make_unique<cuda::CudaMoeRuntime>(options, shape, context);
}

size_t CudaMoePeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                        DType dtype, const DeviceMoeHosts& hosts) {
  return cuda::CudaMoeRuntime::PeerBytes(options, shape, mesh, dtype, hosts);
}

}  // namespace switchyard
