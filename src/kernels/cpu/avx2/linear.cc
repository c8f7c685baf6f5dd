#include "kernels/cpu/simd/linear.h"

#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx2 {

void Linear(const LinearTask& t) { simd::Linear<Vec>(t); }

}  // namespace switchyard::kernels::cpu::avx2
