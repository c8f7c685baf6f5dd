// W4A16 GEMM D = A · Bᵀ for int4 weights with float32 scales and zero points: instantiations of the
// kernel of w4a16_few_rows.cuh. Tiles, grid and source: gemm_few_rows.cu.
#include "kernels/cuda/quantized/w4a16_few_rows.cuh"

namespace switchyard::cuda {

cudaError_t StartW4A16Int4(const W4A16Launch& launch, const PdlStream& chain) {
  switch (launch.params.format.scales) {
    case 1:
      return w4a16::Start<W4A16Kind::kInt4, 1>(launch, chain);
    case 2:
      return w4a16::Start<W4A16Kind::kInt4, 2>(launch, chain);
    case 4:
      return w4a16::Start<W4A16Kind::kInt4, 4>(launch, chain);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace switchyard::cuda
