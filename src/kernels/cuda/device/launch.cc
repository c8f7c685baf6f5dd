#include "kernels/cuda/device/launch.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "core/error.h"

namespace switchyard::cuda {
namespace {

// Looked up through the runtime: the program does not link libcuda and starts on machines without a
// driver.
PFN_cuTensorMapEncodeTiled_v12000 EncodeFunction() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
    throw Resource(
        "the CUDA driver has no tensor maps: needs a Hopper GPU and driver 525 or newer");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

// All arrays begin with the innermost dimension. `sizes` and `box` are in elements. `strides` are
// in bytes and have no entry for the innermost dimension.
template <int kDimensions>
CUtensorMap Encode(const void* data, int element_bytes, const cuuint64_t (&sizes)[kDimensions],
                   const cuuint64_t (&strides)[kDimensions - 1],
                   const cuuint32_t (&box)[kDimensions]) {
  static const auto kEncode = EncodeFunction();
  CUtensorMap map;
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      kEncode(&map,
              element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
              : element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
              kDimensions, const_cast<void*>(data), sizes, strides, box, steps,
              CU_TENSOR_MAP_INTERLEAVE_NONE,
              element_bytes == 4 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Resource("cuTensorMapEncodeTiled failed for {} x {} elements of {} bytes (error {})",
                   sizes[1], sizes[0], element_bytes, static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap MakeTensorMap(const void* data, int64_t rows, int64_t columns, int element_bytes,
                          int box_rows, int box_columns, int64_t stride) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {
      static_cast<cuuint64_t>((stride ? stride : columns) * element_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns),
                            static_cast<cuuint32_t>(box_rows)};
  return Encode<2>(data, element_bytes, sizes, strides, box);
}

CUtensorMap MakeTensorMap3d(const void* data, int64_t rows, int64_t columns, int element_bytes,
                            int box_rows, int planes, int64_t stride) {
  constexpr int kPlaneBytes = 128;
  const int plane = kPlaneBytes / element_bytes;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(plane), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(columns / plane)};
  const cuuint64_t strides[] = {
      static_cast<cuuint64_t>((stride ? stride : columns) * element_bytes), kPlaneBytes};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(plane), static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(planes)};
  return Encode<3>(data, element_bytes, sizes, strides, box);
}

CUtensorMap MakeVectorTensorMap(const void* data, int64_t outer, int64_t inner, int64_t columns,
                                int64_t outer_stride, int64_t inner_stride, int box_outer,
                                int box_inner) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(inner),
                              static_cast<cuuint64_t>(outer)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(inner_stride),
                                static_cast<cuuint64_t>(outer_stride)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_inner),
                            static_cast<cuuint32_t>(box_outer)};
  return Encode<3>(data, 2, sizes, strides, box);
}

}  // namespace switchyard::cuda
