#include "kernels/cpu/avx512/vec.h"
#include "train/math/simd_kernels.h"

namespace switchyard::train::avx512 {

const KernelTable kKernels = simd::KernelTableOf<kernels::cpu::avx512::Vec, 6, 4>();

}  // namespace switchyard::train::avx512
