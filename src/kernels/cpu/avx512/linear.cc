#include "kernels/cpu/simd/linear.h"

#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu {

// The kernels of each row type are instantiated in linear_16_bits.cc, linear_8_bits.cc and
// linear_4_bits.cc, so that they compile in parallel.
using V = avx512::Vec;
extern template void simd::LinearDirect<V, simd::BF16Row<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::F16Row<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Fp8Row<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Fp8ChannelRow<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Int8ChannelRow<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Int4Row<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Mxfp4Row<V>>(const LinearTask&);
extern template void simd::LinearDirect<V, simd::Nvfp4Row<V>>(const LinearTask&);

namespace avx512 {

void Linear(const LinearTask& t) { simd::Linear<Vec>(t); }

}  // namespace avx512
}  // namespace switchyard::kernels::cpu
