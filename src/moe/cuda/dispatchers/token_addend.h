// A term that combine adds to a token's sum over experts: the output of a shared expert that is not
// dispatched.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// The last term of token t's sum: sigmoid(gate[t]) · x[t], or x[t] if there is no gate. Device
// memory. If x is null, there is no such term.
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
