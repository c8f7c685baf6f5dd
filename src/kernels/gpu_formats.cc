#include "kernels/gpus.h"

namespace switchyard::kernels {

WeightFormat GpuFormat(WeightFormat format, DType dtype, bool whole_blocks) {
  const bool exact = dtype == DType::kF32;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
      return format;
    case WeightFormat::kF16:
      return exact ? format : WeightFormat::kBF16;
    case WeightFormat::kFp8Block:
      if (whole_blocks) return format;
      break;
    default:
      break;
  }
  return exact ? WeightFormat::kF32 : WeightFormat::kBF16;
}

bool ExpertsStayPackedOnGpu(WeightFormat format) {
  return format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4 ||
         format == WeightFormat::kInt4Group;
}

}  // namespace switchyard::kernels
