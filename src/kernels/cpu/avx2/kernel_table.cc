#include "kernels/cpu/kernel_table.h"

#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/pointwise.h"
#include "kernels/cpu/simd/recurrent.h"

namespace switchyard::kernels::cpu::avx2 {

constexpr KernelTable kKernels = {
    .linear = Linear,
    .linear_int8 = LinearInt8,
    .linear_four_bit = LinearFourBit,
    .columns = simd::Columns<Vec>,
    .attention = simd::Attention<Vec>,
    .merge_attention = simd::MergeAttention<Vec>,
    .rms_norm = simd::RmsNorm<Vec>,
    .swiglu = simd::SwiGlu<Vec>,
    .swiglu_clamped = simd::SwiGluClamped<Vec>,
    .add = simd::Add<Vec>,
    .rotate = simd::Rotate<Vec>,
    .narrow = simd::Narrow<Vec>,
    .round = simd::Round<Vec>,
    .short_conv = simd::ShortConvRow<Vec>,
    .multiply_by_sigmoid = simd::MultiplyBySigmoid<Vec>,
    .key_decays = simd::KeyDecays<Vec>,
    .delta = simd::Delta<Vec>,
    .delta_columns = simd::kDeltaVectors * Vec::kLanes,
};

}  // namespace switchyard::kernels::cpu::avx2
