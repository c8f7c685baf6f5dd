// The stages of an MoE layer on a GPU.
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/cuda_backend.h"
#include "moe/cuda/dispatchers/arena_exchange_launch.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/router/router_logits.h"
#include "moe/cuda/router/select_and_order.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

ElementType TypeOf(RowFormat format) {
  if (format.fp8) return ElementType::kFp8;
  return format.dtype == DType::kBF16 ? ElementType::kBF16 : ElementType::kF32;
}

// The shared expert's output of the own tokens, beginning with `token`.
TokenAddend SharedOutput(const CudaMoeParts& parts, const CudaMoeState& s, int64_t token) {
  const bool gated = parts.shared_gate.n > 0;
  return {.x = s.buffers.shared_y.as<float>() + token * s.width,
          .gate = gated ? s.buffers.shared_gate.as<float>() + token : nullptr};
}

}  // namespace

float* CudaMoeBackend::GatheredRows(MoeState& state) {
  return Own(state).buffers.gathered.as<float>();
}
float* CudaMoeBackend::LaneSums(MoeState& state) {
  return Own(state).buffers.lane_sums.as<float>();
}
float* CudaMoeBackend::GatheredRouterRows(MoeState& state) {
  return Own(state).buffers.gathered_router.as<float>();
}

void CudaMoeBackend::Start(const MoeLayerParts& layer, MoeState& state) {
  const MoeBuffers& buffers = Own(state).buffers;
  CHECK_GE(static_cast<int64_t>(buffers.outputs.bytes()), output_bytes_);
  CHECK(!Own(layer).shared || buffers.shared_y.data() != nullptr);
  if (const Branch* branch = SharedBranch(Own(layer), Own(state))) branch->Fork(stream());
}

void CudaMoeBackend::BeginDispatch(const MoeLayerParts& layer, MoeState& state) {
  CudaMoeState& s = Own(state);
  if (s.exchange || gathers()) s.MarkStage(&MoeTimes::dispatch);
  if (s.exchange) {
    // CPUs would read experts' weights for rows that pad the batch. The first row never does.
    if (s.device && s.round.end > 1)
      Check(DropPaddingIds({.ids = s.buffers.ids.as<int32_t>(),
                            .tokens = s.round.size(),
                            .first = s.round.begin,
                            .k = slots_per_token(),
                            .rows = s.pass_rows.as<int32_t>()},
                           stream()),
            "rows of padding");
    s.exchange->BeginDispatch(s.slot,
                              {.x = DispatchedRowsOf(s),
                               .dtype = DType::kF32,
                               .ids = DispatchedIds(s),
                               .weights = DispatchedWeights(s),
                               .tokens = s.round.size(),
                               .longest = s.LongestInRound(),
                               .addend = SharedInSums(Own(layer), s),
                               .overlaps = s.sends_on_side_stream},
                              ForkSends(s));
    MarkSent(s);
  } else if (gathers()) {
    GatherAll(s);
  }
}

std::span<const size_t> CudaMoeBackend::LaneSizes(CudaMoeState& s, size_t size) const {
  s.part_sizes.resize(s.lanes.size());
  for (size_t i = 0; i < s.lanes.size(); ++i) s.part_sizes[i] = s.InRound(s.lanes[i]) * size;
  return s.part_sizes;
}

// Used by backend `none` with DP attention: gathers the tokens of all ranks on every rank.
void CudaMoeBackend::GatherAll(CudaMoeState& s) const {
  const MoeBuffers& buffers = s.buffers;
  const int k = slots_per_token();
  const auto gather = [&](const void* part, const DeviceMemory& all, size_t size) {
    const auto sizes = LaneSizes(s, size);
    if (mesh_.ep() > 1) return groups().ep->AllGatherV(part, all.data(), sizes);
    Check(cudaMemcpyAsync(all.data(), part, sizes[0], cudaMemcpyDeviceToDevice, stream()),
          "copy of tokens");
  };
  gather(DispatchedIds(s), buffers.all_ids, k * sizeof(int32_t));
  gather(DispatchedWeights(s), buffers.all_weights, k * sizeof(float));
  gather(DispatchedRowsOf(s), buffers.all_x, s.width * sizeof(float));
  const int64_t tokens = std::accumulate(s.lanes.begin(), s.lanes.end(), int64_t{0});
  Check(MapIds(buffers.all_ids.as<int32_t>(), local_ids_.as<int32_t>(), tokens * k,
               buffers.all_local.as<int32_t>(), stream()),
        "local experts of all tokens");
}

void CudaMoeBackend::RunShared(const MoeLayerParts& layer, MoeState& state) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  const int64_t own = s.own.size();
  if (!parts.shared || own == 0) return;
  CHECK(s.in_first_round());
  const Branch* branch = SharedBranch(parts, s);
  // The work of a branch overlaps that of the other stages.
  if (!branch) s.MarkStage(&MoeTimes::experts);
  const PdlStream on = branch ? PdlStream(branch->stream(), chain().early) : chain();
  RunSharedExpert(*parts.shared, ActivationOf(parts.config), s.own_x(), own,
                  s.buffers.shared_y.as<float>(),
                  branch ? s.buffers.shared_products : s.buffers.products, on);
  if (parts.shared_gate.n == 0) return;
  Check(RouterLogits({.x = s.own_x(),
                      .w = parts.shared_gate.data.data(),
                      .w_is_bf16 = parts.shared_gate.type == ElementType::kBF16,
                      .y = s.buffers.shared_gate.as<float>(),
                      .m = own,
                      .n = 1,
                      .k = s.width},
                     on.stream),
        "gate of the shared expert");
}

void CudaMoeBackend::EndDispatch(const MoeLayerParts& /*layer*/, MoeState& state) {
  CudaMoeState& s = Own(state);
  const MoeBuffers& buffers = s.buffers;
  CudaMoeState::Arrived& arrived = s.arrived;
  const int64_t hidden = s.width;
  arrived = {};
  if (s.exchange) {
    s.MarkStage(&MoeTimes::dispatch);
    AwaitSent(s);
    const DispatchedRows rows = s.exchange->EndDispatch(s.slot, stream());
    arrived.in = {.segments = sources(),
                  .capacity = s.max_round_tokens,
                  .tokens = s.LongestInRound(),
                  .counts = rows.counts};
    arrived.rows = rows.rows;
    arrived.row_stride = rows.row_stride;
    arrived.scale_offset = rows.scale_offset;
    arrived.type = TypeOf(row_format());
    arrived.exchanged = true;
    arrived.ids = rows.ids;
  } else {
    const bool all = gathers();
    const int64_t tokens =
        all ? std::accumulate(s.lanes.begin(), s.lanes.end(), int64_t{0}) : s.round.size();
    const float* x = all ? buffers.all_x.as<float>() : DispatchedRowsOf(s);
    arrived.in = {.segments = 1, .capacity = tokens, .tokens = tokens};
    arrived.rows = reinterpret_cast<const std::byte*>(x);
    arrived.row_stride = hidden * static_cast<int64_t>(sizeof(float));
    arrived.ids = all ? buffers.all_local.as<int32_t>() : DispatchedIds(s);
    arrived.weights = all ? buffers.all_weights.as<float>() : DispatchedWeights(s);
  }
}

void CudaMoeBackend::PrePermute(const MoeLayerParts& layer, MoeState& state) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  const MoeBuffers& buffers = s.buffers;
  const CudaMoeState::Arrived& arrived = s.arrived;
  if (s.streams) return;  // RunStreamed orders the rows of each group of experts
  s.order = {.position = buffers.position.as<int32_t>(),
             .offsets = buffers.offsets.as<int32_t>(),
             .counts = buffers.counts.as<int32_t>(),
             .block_groups = buffers.block_groups.as<int32_t>()};
  const RowOrderParams order = {.in = arrived.in,
                                .ids = arrived.ids,
                                .k = slots_per_token(),
                                .experts = parts.experts.experts,
                                .blocks = s.ordered_rows / kGroupBlockRows,
                                .scratch = buffers.order_scratch.as<int32_t>(),
                                .out = s.order};
  // A kernel that selects experts too counts to no part, as Route does.
  s.MarkStage(FusesSelectAndOrder(s) ? nullptr : &MoeTimes::experts);
  if (FusesSelectAndOrder(s)) {
    Check(RoutesInOneKernel(parts, s)
              ? RouteFewTokens(Logits(parts, s), Choice(parts, s), order, chain())
              : SelectAndOrder(Choice(parts, s), order, buffers.order_arrived.as<uint32_t>(),
                               chain()),
          "choice of experts and order of rows");
    StoreRoutedExperts(s);
  } else {
    permute_.order(order, stream());
  }
  // If the round has no tokens, the kernels above have not written the counts.
  if (s.log && s.log->counts_dispatched() && s.slots > 0)
    s.log->CountDispatched(parts.index, buffers.counts.as<int32_t>());
}

GpuGroupedRows CudaMoeBackend::ChunkAt(const CudaMoeState& s, int64_t first) const {
  const int64_t rows = std::min(chunk_rows_, s.ordered_rows - first);
  return {.chunk = {.order = s.order,
                    .first = first,
                    .rows = rows,
                    .most_valid = std::min(rows, s.slots)},
          .is_whole = s.ordered_rows <= chunk_rows_,
          .expected_rows = s.expected_slots};
}

// Copies the rows of the chunk that begins at `first` to the runner's input.
GpuGroupedRows CudaMoeBackend::PermuteChunk(const CudaMoeParts& parts, const CudaMoeState& s,
                                            int64_t first) const {
  const CudaMoeState::Arrived& arrived = s.arrived;
  const ProductBuffers& buffers = s.buffers.products;
  GpuGroupedRows grouped = ChunkAt(s, first);
  permute_.copy({.in = arrived.in,
                 .rows = arrived.rows,
                 .row_stride = arrived.row_stride,
                 .scale_offset = arrived.scale_offset,
                 .from = arrived.type,
                 .via = arrived.exchanged ? ElementType::kF32 : TypeOf(row_format()),
                 .hidden = shape_.hidden,
                 .k = slots_per_token(),
                 .chunk = grouped.chunk,
                 .to = parts.experts.arithmetic.input,
                 .a = buffers.a.data(),
                 .a_scales = buffers.a_scales.as<float>()},
                chain());
  grouped.a = buffers.a.data();
  grouped.a_scales = buffers.a_scales.as<float>();
  return grouped;
}

std::byte* CudaMoeBackend::OutputsOf(const CudaMoeParts& parts, const CudaMoeState& s,
                                     const RowChunk& chunk) const {
  return s.buffers.outputs.data() +
         chunk.first * shape_.hidden * ElementBytes(parts.experts.arithmetic.output);
}

// Processes the rows in chunks. The host does not know the counts, so the number of chunks follows
// from the maximum number of rows. If RunDown follows, computes only the gate and up projections,
// and only for the first chunk, which usually has all rows.
void CudaMoeBackend::RunExperts(const MoeLayerParts& layer, MoeState& state) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  const ProductBuffers& buffers = s.buffers.products;
  const ExpertActivation activation = ActivationOf(parts.config);
  s.MarkStage(&MoeTimes::experts);
  if (s.streams) return RunStreamed(parts, s);
  if (SplitsDown(s)) {
    if (s.ordered_rows == 0) return;
    s.grouped = PermuteChunk(parts, s, 0);
    return runner_->RunGateUp(parts.experts, activation, s.grouped, buffers, chain());
  }
  for (int64_t first = 0; first < s.ordered_rows; first += chunk_rows_) {
    const GpuGroupedRows rows = PermuteChunk(parts, s, first);
    runner_->Run(parts.experts, activation, rows, buffers, OutputsOf(parts, s, rows.chunk),
                 chain());
  }
}

// Does nothing: EndCombine reads the outputs in the order of the experts.
void CudaMoeBackend::PostPermute(const MoeLayerParts& /*layer*/, MoeState& /*state*/) {}

void CudaMoeBackend::BeginCombine(const MoeLayerParts& layer, MoeState& state) {
  CudaMoeState& s = Own(state);
  if (SplitsDown(s)) return;
  s.MarkStage(&MoeTimes::combine);
  if (const Branch* branch = SharedBranch(Own(layer), s)) branch->Join(stream());
  if (!s.exchange) return;
  s.exchange->BeginCombine(s.slot, s.buffers.outputs.data(), s.order.position, ForkSends(s));
  MarkSent(s);
}

// Each part is sent on the stream of sends as soon as it is computed. Usually all rows are in the
// first chunk. If there are further chunks, this stage also computes their gate and up projections.
void CudaMoeBackend::RunDown(const MoeLayerParts& layer, MoeState& state) {
  CudaMoeState& s = Own(state);
  if (!SplitsDown(s)) return;
  s.MarkStage(&MoeTimes::experts);
  const CudaMoeParts& parts = Own(layer);
  const ProductBuffers& buffers = s.buffers.products;
  const ExpertActivation activation = ActivationOf(parts.config);
  const auto send = [&](OutputRange outputs) {
    const RowChunk& chunk = s.grouped.chunk;
    outputs.last = outputs.last && chunk.first + chunk.rows == s.ordered_rows;
    s.exchange->BeginCombinePart(s.slot, s.buffers.outputs.data(), s.order.position, outputs,
                                 ForkSends(s));
  };
  if (s.ordered_rows == 0) {
    s.grouped = {};
    send({});
  }
  for (int64_t first = 0; first < s.ordered_rows; first += chunk_rows_) {
    if (first > 0) {
      s.grouped = PermuteChunk(parts, s, first);
      runner_->RunGateUp(parts.experts, activation, s.grouped, buffers, chain());
    }
    runner_->RunDown(parts.experts, activation, s.grouped, buffers, first == 0 ? s.down_parts : 1,
                     OutputsOf(parts, s, s.grouped.chunk), chain(), send);
  }
  MarkSent(s);
}

void CudaMoeBackend::EndCombine(const MoeLayerParts& layer, MoeState& state) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  s.MarkStage(&MoeTimes::combine);
  if (s.streams) return AddSharedToSums(parts, s);
  if (s.exchange) {
    const Branch* branch = SplitsDown(s) ? SharedBranch(parts, s) : nullptr;
    if (branch) branch->Join(stream());  // the down projection did not need this branch to end
    AwaitSent(s);
    return s.exchange->EndCombine(s.slot, s.combine_y(), stream());
  }
  const bool adds_up = ReducesAfterSums();
  float* sums = adds_up ? s.buffers.all_sums.as<float>() : s.combine_y();
  Check(UnpermuteRows({.outputs = s.buffers.outputs.data(),
                       .type = parts.experts.arithmetic.output,
                       .position = s.order.position,
                       .weights = s.arrived.weights,
                       .tokens = s.arrived.in.tokens,
                       .hidden = s.width,
                       .k = slots_per_token(),
                       .addend = SharedInSums(parts, s),
                       .y = sums},
                      SharedBranch(parts, s) ? PdlStream(stream()) : chain()),
        "sums over slots");
  if (adds_up) groups().ep->ReduceScatterV(sums, s.combine_y(), LaneSizes(s, s.width));
}

// True for backend `none` with DP attention: each rank sums the outputs of its own experts for the
// tokens of all ranks, and a reduce-scatter then adds these partial sums.
bool CudaMoeBackend::ReducesAfterSums() const { return gathers() && mesh_.ep() > 1; }

// Whether the combine sums include the shared expert's output. They do not if a later reduction
// over ranks would count it more than once; Scatter adds it then.
bool CudaMoeBackend::SumsIncludeShared(const CudaMoeParts& parts, const CudaMoeState& s) const {
  return parts.shared && !ReducesAfterSums() && !(s.partitioned && mesh_.moe_tp() > 1);
}

TokenAddend CudaMoeBackend::SharedInSums(const CudaMoeParts& parts, const CudaMoeState& s) const {
  return SumsIncludeShared(parts, s) ? SharedOutput(parts, s, s.round.begin) : TokenAddend{};
}

void CudaMoeBackend::AddShared(const MoeLayerParts& layer, MoeState& state, float* own_out) {
  const CudaMoeParts& parts = Own(layer);
  CudaMoeState& s = Own(state);
  // Without a partition every rank has all tokens, and an all-reduce follows. So one rank adds.
  if (parts.config.router.zero_experts > 0 && (s.partitioned || mesh_.tp_rank() == 0))
    Check(AddWeightedRows({.x = s.own_x(),
                           .weights = s.buffers.zero_weights.as<float>() +
                                      (s.partitioned ? s.partition.own_in_lane() : 0),
                           .tokens = s.own.size(),
                           .hidden = s.width,
                           .y = own_out},
                          stream()),
          "outputs of experts without computation");
  if (!parts.shared || SumsIncludeShared(parts, s)) return;
  Check(AddToTokens({.addend = SharedOutput(parts, s, 0),
                     .tokens = s.own.size(),
                     .hidden = s.width,
                     .y = own_out},
                    stream()),
        "sum with the shared expert");
}

}  // namespace switchyard::cuda
