#include "kernels/cpu/avx512/vec.h"
#include "train/math/leaves_of.h"

namespace switchyard::train::avx512 {

const KernelTable kKernels = simd::LeavesOf<kernels::cpu::avx512::Vec, 6, 4>();

}  // namespace switchyard::train::avx512
