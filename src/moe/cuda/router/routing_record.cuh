// The device function that records one choice.
#pragma once

#include "moe/cuda/router/routing_record.h"

namespace switchyard::cuda {

// Records the choice for slot `slot` of the `k` slots of a token. `logical` and `physical` are −1
// if the slot has no expert. One thread per slot calls it. The order of the additions does not
// matter, since counts are integers.
__device__ __forceinline__ void RecordChoice(const RoutingRecord& record, int64_t token, int slot,
                                             int k, int logical, int physical) {
  const int64_t row = record.first_row + token - record.begin;
  if (row >= record.control->rows) return;
  if (record.logical_ids != nullptr) {
    record.logical_ids[row * k + slot] = logical;
    record.physical_ids[row * k + slot] = physical;
  }
  if (record.logical_counts == nullptr) return;
  if (logical >= 0) atomicAdd(record.logical_counts + logical, 1);
  if (physical >= 0) atomicAdd(record.physical_counts + physical, 1);
}

// Whether the token is recorded.
__device__ __forceinline__ bool IsRecorded(const RoutingRecord& record, int64_t token) {
  return record.control != nullptr && token >= record.begin && token < record.end;
}

}  // namespace switchyard::cuda
