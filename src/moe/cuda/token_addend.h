// What is added to a token's sum over experts: the output of the shared expert, which did not
// travel.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

// Token t gets sigmoid(gate[t]) · x[t], or without a gate x[t], as the last term of its sum.
// Device memory; nothing where x is null.
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
