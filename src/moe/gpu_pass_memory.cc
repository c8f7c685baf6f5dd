#include "moe/gpu_pass_memory.h"

#include <algorithm>

#include "core/parallel.h"
#include "moe/backends.h"
#include "moe/gpu_options.h"
#include "moe/stream_experts.h"

namespace switchyard::cuda {
namespace {

// Equal to kGroupBlockRows and kOrderTile, whose headers need CUDA.
constexpr int64_t kBlockRows = 128, kTileSlots = 4096;
constexpr int64_t kFp8Group = 128, kInt = 4, kFloat = 4;

// Bytes of the rows of both products (CudaMoeBackend::BytesOf).
struct Products {
  int64_t a = 0, a_scales = 0, gate_up = 0, middle = 0, middle_scales = 0;
  Products(int64_t rows, int64_t hidden, int64_t intermediate, DType precision,
           const GpuExpertSizes& experts) {
    const bool fp8 = experts.fp8;
    const auto output = static_cast<int64_t>(SizeOf(precision));
    const int64_t input = fp8 ? 1 : output;
    a = rows * hidden * input;
    gate_up = rows * (experts.gated ? 2 : 1) * intermediate * output;
    middle = rows * intermediate * input;
    if (!fp8) return;
    a_scales = rows * CeilDiv(hidden, kFp8Group) * kFloat;
    middle_scales = rows * CeilDiv(intermediate, kFp8Group) * kFloat;
  }
  void Cover(const Products& other) {
    a = std::max(a, other.a);
    a_scales = std::max(a_scales, other.a_scales);
    gate_up = std::max(gate_up, other.gate_up);
    middle = std::max(middle, other.middle);
    middle_scales = std::max(middle_scales, other.middle_scales);
  }
  int64_t sum() const { return a + a_scales + gate_up + middle + middle_scales; }
};

}  // namespace

double GpuPassBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                    const GpuExpertSizes& experts, const GpuMoeBackends& backends) {
  CheckGpuOptions(options, shape, mesh, backends);
  const ExchangeShape exchange = ExchangeShapeOf(options, shape, mesh);
  const GpuExchangeBackend& backend = backends.exchanges.Find(options.a2a_backend);
  const Mesh of_rank(mesh, 0);
  const ExchangeModes modes = backend.modes ? backend.modes(options, exchange)
                                            : ExchangeModes{.normal_tokens = exchange.max_tokens};
  const bool scatters = ScattersTokens(options, mesh);
  const bool exchanged = backend.make && mesh.ep > 1;
  const bool gathers = scatters && !backend.make;
  const bool normal = exchanged && modes.normal_tokens > 0;
  const bool low_latency = exchanged && modes.low_latency_tokens > 0;
  const int64_t normal_tokens = modes.normal_tokens > 0 ? modes.normal_tokens : exchange.max_tokens;

  const int64_t k = exchange.k, ep = mesh.ep;
  // With experts on CPUs, rows come from ranks on GPUs only, and this rank has its own slots.
  const int64_t sources = options.host_experts ? mesh.token_ranks() : ep;
  const bool own_slots = options.host_experts && !mesh.expert_slots.empty();
  const int64_t held = own_slots ? mesh.expert_slots.front() : exchange.local_experts;
  const bool streams = options.stream_tokens > 0;
  const int64_t local = streams ? std::max<int64_t>(held, StreamGroup(shape.num_experts)) : held;
  const int64_t round = std::max(normal || !low_latency ? normal_tokens : 0,
                                 low_latency ? modes.low_latency_tokens : 0);
  const int64_t arrived = gathers || normal || low_latency ? sources * round : round;
  const int64_t slots = arrived * std::min<int64_t>(k, local);
  const int64_t ordered =
      RoundUp(slots + std::min(slots, local) * (kBlockRows - 1), kBlockRows);  // MaxOrderedRows
  const int64_t usual = 2 * CeilDiv((scatters ? sources : 1) * round * k, ep) + local * kBlockRows;
  const int64_t chunk = std::min(ordered, RoundUp(std::max(usual, kMinChunkRows), kBlockRows));

  const int64_t hidden = exchange.hidden, lane = exchange.max_tokens;
  const bool shared_dispatched = options.waterfill && shape.has_shared;
  int64_t bytes = round * shape.num_logits() * kFloat + 3 * round * shape.top_k * kInt;
  if (shape.scales_input) bytes += round * hidden * kFloat;
  if (shape.zero_experts > 0) bytes += lane * kFloat;
  if (shared_dispatched) bytes += 2 * round * k * kInt + round * kFloat;
  if (scatters && of_rank.moe_tp() > 1)
    bytes += lane * (2 * hidden + shape.widest_router_row()) * kFloat;
  if (gathers) bytes += 2 * arrived * hidden * kFloat + 3 * arrived * k * kInt;
  if (streams) bytes += arrived * k * kInt;                  // the ids within a group
  bytes += arrived * k * kInt;                               // the position of each slot
  bytes += RoundUp(ordered, chunk) / kBlockRows * kInt;      // the expert of each block
  bytes += CeilDiv(arrived * k, kTileSlots) * local * kInt;  // RowOrderScratch

  Products products(chunk, hidden, experts.intermediate, options.row_dtype, experts);
  if (experts.shared_intermediate > 0) {
    const int64_t own = CeilDiv(shape.max_tokens, scatters ? of_rank.attn_tp() : 1);
    const auto of_shared = [&](int64_t rows) {
      return Products(RoundUp(rows, kBlockRows), hidden, experts.shared_intermediate,
                      options.row_dtype, experts);
    };
    products.Cover(of_shared(own));
    bytes += of_shared(std::min(own, kMaxTokensOnSideStream)).sum();
    bytes += own * (hidden + 1) * kFloat;
  }
  bytes += products.sum();
  bytes += RoundUp(ordered, chunk) * hidden * static_cast<int64_t>(SizeOf(options.row_dtype));
  return static_cast<double>(bytes);
}

}  // namespace switchyard::cuda
