// Kernels of 8-bit weight formats.
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/simd/linear.h"

namespace switchyard::kernels::cpu {

using V = avx512::Vec;
template void simd::LinearDirect<V, simd::Fp8Row<V>>(const LinearTask&);
template void simd::LinearDirect<V, simd::Fp8ChannelRow<V>>(const LinearTask&);
template void simd::LinearDirect<V, simd::Int8ChannelRow<V>>(const LinearTask&);

}  // namespace switchyard::kernels::cpu
