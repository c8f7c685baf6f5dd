// Kernels of 16-bit weight formats.
#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/simd/linear.h"

namespace switchyard::kernels::cpu {

using V = avx2::Vec;
template void simd::LinearDirect<V, simd::BF16Row<V>>(const LinearTask&);
template void simd::LinearDirect<V, simd::F16Row<V>>(const LinearTask&);

}  // namespace switchyard::kernels::cpu
