// The MLP activation as a kernel argument. Internal to kernels/cuda.
#pragma once

#include "kernels/ops.h"

namespace switchyard::cuda::ops {

struct ActivationArg {
  kernels::Activation kind = kernels::Activation::kSwiGlu;
  float alpha = 0, limit = 0;
};

}  // namespace switchyard::cuda::ops
