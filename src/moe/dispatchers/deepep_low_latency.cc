#include "moe/dispatchers/deepep_low_latency.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "moe/dispatchers/return_rows.h"
#include "moe/rows.h"

namespace switchyard {

DeepEpLowLatency::Buffers::Buffers(const MoeOptions& options, const MoeShape& shape, int ep)
    : capacity(std::min<int64_t>(options.max_dispatch_tokens_per_rank,
                                 EvenShare(shape.max_tokens, ep, 0).size())),
      local_experts(EvenShare(shape.num_experts, ep, 0).size()) {
  const size_t row_bytes = shape.hidden * SizeOf(options.row_dtype);
  const size_t places = local_experts * ep * capacity;
  BufferPlan plan;
  counts = plan.Add(sizeof(int32_t) * ep * local_experts);
  rows = plan.Add(row_bytes * places);
  tags = plan.Add(sizeof(int32_t) * places);
  outputs = plan.Add(row_bytes * capacity * shape.top_k);
  bytes = plan.bytes();
}

size_t DeepEpLowLatency::SymmetricBytes(const MoeOptions& options, const MoeShape& shape,
                                        const MeshShape& mesh) {
  return ExchangeSlots::Bytes(mesh.ep, kNumStages, Buffers(options, shape, mesh.ep).bytes);
}

DeepEpLowLatency::DeepEpLowLatency(const DispatcherContext& context)
    : pool_(context.pool),
      hidden_(context.shape.hidden),
      k_(context.shape.top_k),
      num_experts_(context.shape.num_experts),
      row_dtype_(context.options.row_dtype),
      row_bytes_(hidden_ * SizeOf(row_dtype_)),
      experts_(context.shape.num_experts, context.comm.mesh.ep()),
      buffers_(context.options, context.shape, context.comm.mesh.ep()),
      slots_(context.comm, "deepep low_latency", kNumStages, buffers_.bytes) {}

void DeepEpLowLatency::BeginDispatch(const float* x, const TopK& topk, bool,
                                     DispatchHandle* handle) {
  if (topk.tokens > buffers_.capacity)
    throw Resource("deepep low_latency: {} tokens on one rank, it takes {} at a time", topk.tokens,
                   buffers_.capacity);
  CHECK_EQ(topk.k, k_);
  slots_.Take(handle);
  handle->layout = DispatchLayout::kLowLatency;
  handle->topk = &topk;
  CountSends(handle);
  SendCounts(*handle);
  SendRows(x, *handle);
  slots_.RaiseAll(*handle, kRows);
}

void DeepEpLowLatency::CountSends(DispatchHandle* handle) const {
  const TopK& topk = *handle->topk;
  handle->send_counts.assign(num_experts_, 0);
  handle->send_order.resize(topk.ids.size());
  for (size_t i = 0; i < topk.ids.size(); ++i) {
    const int32_t expert = topk.ids[i];
    handle->send_order[i] = expert < 0 ? -1 : handle->send_counts[expert]++;
    // A router names an expert once for a token, so no expert gets more rows than there are tokens.
    CHECK_LT(handle->send_order[i], buffers_.capacity);
  }
}

// All counts are written in every round, zeros too, so that none of an earlier round is left.
void DeepEpLowLatency::SendCounts(const DispatchHandle& handle) {
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    const int64_t place = slots_.rank() * buffers_.local_experts + experts_.LocalId(expert);
    std::memcpy(
        slots_.At(handle, experts_.Owner(expert), buffers_.counts + place * sizeof(int32_t)),
        &handle.send_counts[expert], sizeof(int32_t));
  }
}

void DeepEpLowLatency::SendRows(const float* x, const DispatchHandle& handle) {
  const TopK& topk = *handle.topk;
  pool_.RunRanges(topk.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int j = 0; j < k_; ++j) {
        const int32_t output_place = OutputPlace(t, j, k_);
        const int32_t expert = topk.ids[output_place];
        if (expert < 0) continue;
        const int owner = experts_.Owner(expert);
        const int64_t place =
            FirstPlace(experts_.LocalId(expert), slots_.rank()) + handle.send_order[output_place];
        StoreRow(row_dtype_, x + t * hidden_, hidden_,
                 slots_.At(handle, owner, buffers_.rows + place * row_bytes_));
        std::memcpy(slots_.At(handle, owner, buffers_.tags + place * sizeof(int32_t)),
                    &output_place, sizeof output_place);
      }
    }
  });
}

Dispatched DeepEpLowLatency::EndDispatch(DispatchHandle* handle) {
  slots_.WaitAll(*handle, kRows, "deepep dispatch rows");
  return {.layout = DispatchLayout::kLowLatency,
          .rows = slots_.Local(*handle, buffers_.rows),
          .dtype = row_dtype_,
          .sources = slots_.ranks(),
          .capacity = buffers_.capacity,
          .counts = reinterpret_cast<const int32_t*>(slots_.Local(*handle, buffers_.counts)),
          .counts_stride = buffers_.local_experts};
}

void DeepEpLowLatency::BeginCombine(const ExpertRows& experts, DispatchHandle* handle) {
  const std::byte* tags = slots_.Local(*handle, buffers_.tags);
  pool_.RunRanges(experts.num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t place = experts.places[r];
      const auto source = static_cast<int>(place / buffers_.capacity % slots_.ranks());
      int32_t output_place;
      std::memcpy(&output_place, tags + place * sizeof(int32_t), sizeof output_place);
      StoreRow(row_dtype_, experts.rows + r * hidden_, hidden_,
               slots_.At(*handle, source, buffers_.outputs + output_place * row_bytes_));
    }
  });
  slots_.RaiseAll(*handle, kOutputs);
}

void DeepEpLowLatency::EndCombine(DispatchHandle* handle, float* y) {
  slots_.WaitAll(*handle, kOutputs, "deepep combine rows");
  SumReturnedRows(*handle->topk, row_dtype_, hidden_, slots_.Local(*handle, buffers_.outputs),
                  pool_, y);
  slots_.Release(handle);
}

}  // namespace switchyard
