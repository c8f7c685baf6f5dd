// Maps physical experts to the ids that the exchange or this rank's GEMMs read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moe/cuda/router/routing_record.h"

namespace switchyard::cuda {

struct PlacePhysicalParams {
  const int32_t* logical = nullptr;   // [tokens, k] −1: none
  const int32_t* physical = nullptr;  // [tokens, k] −1: none
  // [num_physical] local id on this rank, or −1. Used if rows are not exchanged. Null: the
  // identity.
  const int32_t* local_ids = nullptr;
  int64_t tokens = 0;
  int k = 0;
  int32_t* ids = nullptr;  // [tokens, k]
  RoutingRecord record;
};
cudaError_t PlacePhysical(const PlacePhysicalParams& p, cudaStream_t stream);

}  // namespace switchyard::cuda
