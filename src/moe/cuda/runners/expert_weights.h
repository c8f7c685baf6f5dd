// Expert weights of a layer in the format of the GPU's grouped GEMMs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "core/dtype.h"
#include "kernels/cuda/quantized/w4a16_layout.h"
#include "kernels/ops.h"
#include "moe/cuda/permute/expert_rows.h"
#include "quant/weight_view.h"

namespace switchyard::cuda {

// Contiguous [n, k] matrices on the device. They are float32, bfloat16, or e4m3 with scales; or
// packed, with bfloat16 arithmetic.
struct DeviceMatrix {
  ElementType type = ElementType::kF32;
  int64_t n = 0, k = 0;
  DeviceMemory data;
  DeviceMemory scales;  // kFp8: [matrices, ceil(n / 128), ceil(k / 128)] float32
  // Format of packed weights. `data` then has the records of the matrices, and `scales` their
  // global scales (w4a16_gemm.h).
  std::optional<W4A16Format> packed;
};

// Formats of an expert's packed matrices.
struct PackedExperts {
  W4A16Format gate_up, down;
  bool operator==(const PackedExperts&) const = default;
};

// Data types and kernels of the experts' GEMMs.
struct ExpertArithmetic {
  ElementType input = ElementType::kF32;   // type of both GEMM inputs, rows and weights
  ElementType output = ElementType::kF32;  // type of GEMM outputs
  // Uses GroupedGemmFp8 or GroupedGemmBf16; false: PlainGroupedGemm.
  bool tensor_cores = false;
  ElementType weights = ElementType::kF32;
  std::optional<PackedExperts> packed;  // if set, GroupedGemmW4A16 replaces GroupedGemmBf16
  // Whether `gate_up` has the rows of `gate`. False with kernels::Activation::kRelu2: it has the
  // rows of `up` only. Set by the layer, not by the runner.
  bool gated = true;

  int64_t upper_parts() const { return gated ? 2 : 1; }
};

// The arrays of an expert.
enum ExpertArray : uint8_t {
  kGateUp,  // gate rows if ExpertArithmetic::gated, then up rows
  kGateUpScales,
  kDown,
  kDownScales,
  kGateUpBias,
  kDownBias,
  kExpertArrays
};
// The device memory of one expert. An array that the layer does not have is null and has 0 bytes.
using ExpertSlot = std::array<std::byte*, kExpertArrays>;
using ExpertSlotBytes = std::array<int64_t, kExpertArrays>;

// Chooses the arithmetic by `dtype` and the weights:
// - kF32: float32 sums of unrounded products; bfloat16 weights stay bfloat16.
// - kBF16 on a Hopper GPU: FP8 if all weights are kFp8Block and this rank's shard begins and ends
// on
//   block boundaries; otherwise bfloat16, if the sizes meet the GEMM's alignment.
// - All other cases: plain arithmetic on bfloat16.
// `packs`: weights for GroupedGemmBf16 stay packed if their formats allow it; results are
// bit-identical.
ExpertArithmetic ChooseArithmetic(std::span<const kernels::ExpertWeights> experts, DType dtype,
                                  bool hopper, bool packs = false);

// Weights of all experts of a layer, contiguous; gate rows precede up rows. U: upper_parts() · I.
// Owns its memory.
struct DeviceExperts {
  // Copies the experts from the host and converts them to the arithmetic's types. `store`: provides
  // the memory, unless it is null; if it is filled, nothing is copied.
  DeviceExperts(std::span<const kernels::ExpertWeights> experts, ExpertArithmetic arithmetic,
                DeviceStore* store = nullptr);

  ExpertSlotBytes slot_bytes() const;
  ExpertSlot Slot(int expert) const;
  // Error kInvalid if these arrays cannot hold `expert` with the same bits that the constructor
  // would have stored. `want`: what the error recommends.
  void CheckFits(const kernels::ExpertWeights& expert,
                 const char* want = "restart without --enable-eplb") const;

  ExpertArithmetic arithmetic;
  int experts = 0;
  int64_t hidden = 0, intermediate = 0;
  DeviceMatrix gate_up;                  // [experts, U, H]
  DeviceMatrix down;                     // [experts, H, I]
  DeviceMemory gate_up_bias, down_bias;  // [experts, U], [experts, H] float32, or empty
};

// Uploads one weight matrix: as bfloat16 if it is stored as bfloat16, otherwise as float32.
// `store`: as in DeviceExperts.
DeviceMatrix UploadPlain(const WeightView& w, DeviceStore* store = nullptr);
DeviceMemory UploadFloats(std::span<const float> values, DeviceStore* store = nullptr);
DeviceMemory UploadIds(std::span<const int32_t> values, DeviceStore* store = nullptr);

}  // namespace switchyard::cuda
