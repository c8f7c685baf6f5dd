#include "kernels/cpu/simd/linear.h"

#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/kernel_table.h"

namespace switchyard::kernels::cpu::avx512 {

void Linear(const LinearTask& t) { simd::Linear<Vec>(t); }

}  // namespace switchyard::kernels::cpu::avx512
