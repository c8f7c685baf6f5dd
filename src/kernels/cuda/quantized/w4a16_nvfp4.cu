// W4A16 GEMM D = A · Bᵀ for NVFP4 weights: instantiations of the kernel of w4a16_few_rows.cuh.
// Tiles, grid and source: gemm_few_rows.cu.
#include "kernels/cuda/quantized/w4a16_few_rows.cuh"

namespace switchyard::cuda {

cudaError_t StartW4A16Nvfp4(const W4A16Launch& launch, const PdlStream& chain) {
  return w4a16::Start<W4A16Kind::kNvfp4, 4>(launch, chain);
}

}  // namespace switchyard::cuda
