// A term added to a token's sum over experts: the output of the shared expert, which is not
// dispatched.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// Adds sigmoid(gate[t]) · x[t], or x[t] without a gate, as the last term of token t's sum. Device
// memory; no term if x is null.
struct TokenAddend {
  const float* x = nullptr;     // [tokens, hidden]
  const float* gate = nullptr;  // [tokens] or null
};

#ifdef __CUDACC__
__device__ __forceinline__ float WeightOf(const TokenAddend& addend, int64_t token) {
  return addend.gate ? 1.0f / (1.0f + expf(-addend.gate[token])) : 1.0f;
}
#endif

}  // namespace switchyard::cuda
