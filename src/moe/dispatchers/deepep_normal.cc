#include "moe/dispatchers/deepep_normal.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "moe/dispatchers/return_rows.h"
#include "moe/rows.h"

namespace switchyard {

DeepEpNormal::Buffers::Buffers(const MoeOptions& options, const MoeShape& shape, int ep)
    : own_capacity(EvenShare(shape.max_tokens, ep, 0).size()), rows_capacity(own_capacity * ep) {
  const size_t row_bytes = shape.hidden * SizeOf(options.row_dtype);
  BufferPlan plan;
  counts = plan.Add(sizeof(int32_t) * ep * ep);
  rows = plan.Add(row_bytes * rows_capacity);
  tags = plan.Add(sizeof(int32_t) * (1 + shape.top_k) * rows_capacity);
  outputs = plan.Add(row_bytes * own_capacity * shape.top_k);
  bytes = plan.bytes();
}

size_t DeepEpNormal::SymmetricBytes(const MoeOptions& options, const MoeShape& shape,
                                    const MeshShape& mesh) {
  return ExchangeSlots::Bytes(mesh.ep, kNumStages, Buffers(options, shape, mesh.ep).bytes);
}

DeepEpNormal::DeepEpNormal(const DispatcherContext& context)
    : pool_(context.pool),
      hidden_(context.shape.hidden),
      k_(context.shape.top_k),
      row_dtype_(context.options.row_dtype),
      row_bytes_(hidden_ * SizeOf(row_dtype_)),
      experts_(context.shape.num_experts, context.comm.mesh.ep()),
      buffers_(context.options, context.shape, context.comm.mesh.ep()),
      slots_(context.comm, "deepep normal", kNumStages, buffers_.bytes) {}

void DeepEpNormal::BeginDispatch(const float* x, const TopK& topk, bool, DispatchHandle* handle) {
  if (topk.tokens > buffers_.own_capacity)
    throw Resource("deepep normal: {} tokens on one rank, its buffers hold {}", topk.tokens,
                   buffers_.own_capacity);
  CHECK_EQ(topk.k, k_);
  slots_.Take(handle);
  handle->layout = DispatchLayout::kNormal;
  handle->topk = &topk;
  CountSends(handle);
  ExchangeCounts(handle);
  SendRows(x, *handle);
  slots_.RaiseAll(*handle, kRows);
}

// The layout computation: each token goes once to each rank that holds one of its experts.
void DeepEpNormal::CountSends(DispatchHandle* handle) const {
  const TopK& topk = *handle->topk;
  const int ranks = slots_.ranks();
  handle->send_counts.assign(ranks, 0);
  handle->send_order.assign(topk.tokens * ranks, -1);
  for (int64_t t = 0; t < topk.tokens; ++t) {
    for (int j = 0; j < k_; ++j) {
      const int32_t expert = topk.ids[t * k_ + j];
      if (expert < 0) continue;
      const int owner = experts_.Owner(expert);
      int32_t& order = handle->send_order[t * ranks + owner];
      if (order < 0) order = handle->send_counts[owner]++;
    }
  }
}

// Every rank learns the whole count matrix, and from it where its rows go and what it will receive.
void DeepEpNormal::ExchangeCounts(DispatchHandle* handle) {
  const int ranks = slots_.ranks(), me = slots_.rank();
  const size_t row_bytes = sizeof(int32_t) * ranks;
  for (int peer = 0; peer < ranks; ++peer)
    std::memcpy(slots_.At(*handle, peer, buffers_.counts + me * row_bytes),
                handle->send_counts.data(), row_bytes);
  slots_.RaiseAll(*handle, kCounts);
  slots_.WaitAll(*handle, kCounts, "deepep dispatch counts");

  const auto* counts =
      reinterpret_cast<const int32_t*>(slots_.Local(*handle, buffers_.counts));  // [source, dest]
  handle->send_begin.assign(ranks, 0);
  handle->receive_begin.assign(ranks + 1, 0);
  for (int dest = 0; dest < ranks; ++dest) {
    int64_t total = 0;
    for (int source = 0; source < ranks; ++source) {
      if (source == me) handle->send_begin[dest] = static_cast<int32_t>(total);
      total += counts[source * ranks + dest];
      if (dest == me) handle->receive_begin[source + 1] = static_cast<int32_t>(total);
    }
    CHECK_LE(total, buffers_.rows_capacity);
  }
}

void DeepEpNormal::SendRows(const float* x, const DispatchHandle& handle) {
  const TopK& topk = *handle.topk;
  const int ranks = slots_.ranks();
  pool_.RunRanges(topk.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int dest = 0; dest < ranks; ++dest) {
        const int32_t order = handle.send_order[t * ranks + dest];
        if (order < 0) continue;
        const int64_t place = handle.send_begin[dest] + order;
        StoreRow(row_dtype_, x + t * hidden_, hidden_,
                 slots_.At(handle, dest, buffers_.rows + place * row_bytes_));
        auto* tag = reinterpret_cast<int32_t*>(
            slots_.At(handle, dest, buffers_.tags + place * (1 + k_) * sizeof(int32_t)));
        tag[0] = static_cast<int32_t>(t);
        for (int j = 0; j < k_; ++j) tag[1 + j] = experts_.LocalIdOn(dest, topk.ids[t * k_ + j]);
      }
    }
  });
}

Dispatched DeepEpNormal::EndDispatch(DispatchHandle* handle) {
  slots_.WaitAll(*handle, kRows, "deepep dispatch rows");
  const auto* tags = reinterpret_cast<const int32_t*>(slots_.Local(*handle, buffers_.tags));
  return {.layout = DispatchLayout::kNormal,
          .rows = slots_.Local(*handle, buffers_.rows),
          .dtype = row_dtype_,
          .num_rows = handle->receive_begin.back(),
          .topk_ids = tags + 1,
          .topk_stride = 1 + k_,
          .k = k_};
}

void DeepEpNormal::BeginCombine(const ExpertRows& experts, DispatchHandle* handle) {
  const auto& begins = handle->receive_begin;
  const auto* tags = reinterpret_cast<const int32_t*>(slots_.Local(*handle, buffers_.tags));
  pool_.RunRanges(begins.back(), kRowGrain, [&](int64_t begin, int64_t end) {
    auto source = std::ranges::upper_bound(begins, begin) - begins.begin() - 1;
    for (int64_t n = begin; n < end; ++n) {
      while (n >= begins[source + 1]) ++source;
      const int32_t token = tags[n * (1 + k_)];
      for (int j = 0; j < k_; ++j) {
        const int64_t r = experts.position[n * k_ + j];
        if (r < 0) continue;
        const int64_t place = OutputPlace(token, j, k_);
        StoreRow(row_dtype_, experts.rows + r * hidden_, hidden_,
                 slots_.At(*handle, source, buffers_.outputs + place * row_bytes_));
      }
    }
  });
  slots_.RaiseAll(*handle, kOutputs);
}

void DeepEpNormal::EndCombine(DispatchHandle* handle, float* y) {
  slots_.WaitAll(*handle, kOutputs, "deepep combine rows");
  SumReturnedRows(*handle->topk, row_dtype_, hidden_, slots_.Local(*handle, buffers_.outputs),
                  pool_, y);
  slots_.Release(handle);
}

}  // namespace switchyard
