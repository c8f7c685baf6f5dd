// The weights of a layer's experts as the grouped GEMMs of a GPU read them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/cuda/w4a16_layout.h"
#include "kernels/ops.h"
#include "moe/cuda/expert_rows.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// A matrix on the device, [n, k] without gaps: float32, bfloat16, or e4m3 with scales; or packed,
// and its numbers bfloat16.
struct DeviceMatrix {
  ElementType type = ElementType::kF32;
  int64_t n = 0, k = 0;
  DeviceMemory data;
  DeviceMemory scales;  // kFp8: [matrices, ceil(n / 128), ceil(k / 128)] float32
  // `data` has the matrices' records, `scales` their globals (w4a16_pack.h).
  std::optional<W4A16Format> packed;
};

// Formats of an expert's matrices that stay packed.
struct PackedExperts {
  W4A16Format gate_up, down;
};

// How experts compute.
struct ExpertArithmetic {
  ElementType input = ElementType::kF32;  // of rows before each of the two products, and of weights
  ElementType output = ElementType::kF32;  // of rows after them
  bool tensor_cores = false;  // GroupedGemmFp8 and GroupedGemmBf16, else PlainGroupedGemm
  ElementType weights = ElementType::kF32;
  std::optional<PackedExperts> packed;  // GroupedGemmW4A16 in GroupedGemmBf16's place
};

// kF32: float32 sums of unrounded products; weights stay bfloat16 where they are. kBF16 on a
// Hopper GPU: FP8 where all weights are kFp8Block and this rank's part begins and ends on blocks,
// else bfloat16, where sizes are multiples of what the GEMM takes; anything else in plain
// arithmetic on bfloat16. `packs`: what GroupedGemmBf16 would multiply with stays packed where its
// formats allow that, which changes no bit.
ExpertArithmetic ChooseArithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                  bool hopper, bool packs = false);

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
