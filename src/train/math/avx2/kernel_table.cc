#include "kernels/cpu/avx2/vec.h"
#include "train/math/simd_kernels.h"

namespace switchyard::train::avx2 {

const KernelTable kKernels = simd::KernelTableOf<kernels::cpu::avx2::Vec, 4, 2>();

}  // namespace switchyard::train::avx2
