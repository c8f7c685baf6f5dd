// Passes in which a GPU computes the experts of CPU ranks, group by group (moe/stream_experts.h).
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/cuda_backend.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "moe/stream_experts.h"
#include "quant/formats.h"

namespace switchyard::cuda {

// While the host enqueues a layer, the GPU may still compute earlier ones. The first uploads of the
// layer begin as soon as the buffers are free, so they overlap the attention before it.
void CudaMoeBackend::RunStreamed(const CudaMoeParts& parts, CudaMoeState& s) {
  if (s.arrived.in.tokens == 0) return;
  const int groups = parts.groups();
  CHECK(groups == 0 || (stream_experts_ && parts.pinned.pinned()));
  const auto upload = [&](int group) {
    if (group < groups) stream_experts_->Upload(group % 2, parts.pinned, parts.Group(group));
  };
  upload(0);
  upload(1);
  RunGroup(parts, parts.experts, 0, s);
  for (int group = 0; group < groups; ++group) {
    RunGroup(parts, stream_experts_->Await(group % 2, stream()), 1 + group, s);
    stream_experts_->Release(group % 2, stream());
    upload(group + 2);
  }
}

// The sums over the slots of a token begin with those of this GPU's experts, and each group adds
// its own. So they are not in slot order, and differ from those of other passes in the last bits.
void CudaMoeBackend::RunGroup(const CudaMoeParts& parts, const DeviceExperts& experts, int places,
                              CudaMoeState& s) {
  const MoeBuffers& buffers = s.buffers;
  const int64_t tokens = s.arrived.in.tokens, physical = parts.config.placement.num_physical();
  const int k = slots_per_token();
  Check(MapIds(s.arrived.ids, parts.group_places.as<int32_t>() + places * physical, tokens * k,
               buffers.group_ids.as<int32_t>(), stream()),
        "experts of a group");
  s.slots = tokens * std::min(k, experts.experts);
  s.expected_slots = CeilDiv(tokens * k * experts.experts, shape_.num_experts);
  s.ordered_rows = MaxOrderedRows(s.slots, experts.experts);
  s.order = {.position = buffers.position.as<int32_t>(),
             .offsets = buffers.offsets.as<int32_t>(),
             .counts = buffers.counts.as<int32_t>(),
             .block_groups = buffers.block_groups.as<int32_t>()};
  permute_.order({.in = s.arrived.in,
                  .ids = buffers.group_ids.as<int32_t>(),
                  .k = k,
                  .experts = experts.experts,
                  .blocks = s.ordered_rows / kGroupBlockRows,
                  .scratch = buffers.order_scratch.as<int32_t>(),
                  .out = s.order},
                 stream());
  for (int64_t first = 0; first < s.ordered_rows; first += chunk_rows_) {
    const GpuGroupedRows rows = PermuteChunk(parts, s, first);
    runner_->Run(experts, ActivationOf(parts.config), rows, buffers.products,
                 OutputsOf(parts, s, rows.chunk), chain());
  }
  Check(UnpermuteRows({.outputs = buffers.outputs.data(),
                       .type = experts.arithmetic.output,
                       .position = s.order.position,
                       .weights = s.arrived.weights,
                       .tokens = tokens,
                       .hidden = s.width,
                       .k = k,
                       .addend = {.x = places == 0 ? nullptr : s.combine_y()},
                       .y = s.combine_y()},
                      chain()),
        "sums over the slots of a group");
}

// As the last term of each sum, as in other passes.
void CudaMoeBackend::AddSharedToSums(const CudaMoeParts& parts, const CudaMoeState& s) const {
  const TokenAddend shared = SharedInSums(parts, s);
  if (shared.x == nullptr || s.arrived.in.tokens == 0) return;
  Check(
      AddToTokens(
          {.addend = shared, .tokens = s.arrived.in.tokens, .hidden = s.width, .y = s.combine_y()},
          stream()),
      "sum with the shared expert");
}

}  // namespace switchyard::cuda
