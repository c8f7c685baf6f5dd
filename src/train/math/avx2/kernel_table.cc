#include "kernels/cpu/avx2/vec.h"
#include "train/math/leaves_of.h"

namespace switchyard::train::avx2 {

const KernelTable kKernels = simd::LeavesOf<kernels::cpu::avx2::Vec, 4, 2>();

}  // namespace switchyard::train::avx2
