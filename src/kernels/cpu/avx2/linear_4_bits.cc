// Kernels of 4-bit weight formats.
#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/simd/linear.h"

namespace switchyard::kernels::cpu {

using V = avx2::Vec;
template void simd::LinearDirect<V, simd::Int4Row<V>>(const LinearTask&);
template void simd::LinearDirect<V, simd::Mxfp4Row<V>>(const LinearTask&);
template void simd::LinearDirect<V, simd::Nvfp4Row<V>>(const LinearTask&);

}  // namespace switchyard::kernels::cpu
