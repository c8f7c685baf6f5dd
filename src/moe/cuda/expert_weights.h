// The weights of a layer's experts as the grouped GEMMs of a GPU read them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/ops.h"
#include "moe/cuda/expert_rows.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// A matrix on the device, [n, k] without gaps: float32, bfloat16, or e4m3 with scales.
struct DeviceMatrix {
  ElementType type = ElementType::kF32;
  int64_t n = 0, k = 0;
  DeviceMemory data;
  DeviceMemory scales;  // kFp8: [matrices, ceil(n / 128), ceil(k / 128)] float32
};

// How experts compute.
struct ExpertArithmetic {
  ElementType input = ElementType::kF32;  // of rows before each of the two products, and of weights
  ElementType output = ElementType::kF32;  // of rows after them
  bool tensor_cores = false;  // GroupedGemmFp8 and GroupedGemmBf16, else PlainGroupedGemm
  ElementType weights = ElementType::kF32;
};

// kF32: float32 sums of unrounded products; weights stay bfloat16 where they are. kBF16 on a
// Hopper GPU: FP8 where all weights are kFp8Block and this rank's part begins and ends on blocks,
// else bfloat16, where sizes are multiples of what the GEMM takes; anything else in plain
// arithmetic on bfloat16.
ExpertArithmetic ChooseArithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                  bool hopper);

// Experts one after the other; a gate's rows lie before its up's. Owns its memory.
struct DeviceExperts {
  // Copies from the host, converting where the arithmetic has another type.
  DeviceExperts(std::span<const kernels::ExpertWeights> experts, ExpertArithmetic arithmetic);

  ExpertArithmetic arithmetic;
  int experts = 0;
  int64_t hidden = 0, intermediate = 0;
  DeviceMatrix gate_up;                  // [experts, 2 I, H]
  DeviceMatrix down;                     // [experts, H, I]
  DeviceMemory gate_up_bias, down_bias;  // [experts, 2 I], [experts, H] float32, or empty
};

// One weight as float32, or as bfloat16 where it is that.
DeviceMatrix UploadPlain(const WeightView& w);
DeviceMemory UploadFloats(std::span<const float> values);
DeviceMemory UploadIds(std::span<const int32_t> values);

}  // namespace switchyard::cuda
