// Parts of the GPU's code that are written and tested but have not been run on a GPU yet: off
// unless --cuda-experimental names them.
#pragma once

#include <string_view>

namespace switchyard::kernels {

struct CudaExperimental {
  bool fused_decode = false;  // "fused-decode": fewer kernels in a layer (kernels/fused_ops.h)
  bool w4a16 = false;         // "w4a16": 4-bit experts stay packed (kernels/cuda/w4a16_gemm.h)
};

// From names with commas between them; empty: none. Error kInvalid names the flag and what it
// takes.
CudaExperimental ParseCudaExperimental(std::string_view names);

}  // namespace switchyard::kernels
