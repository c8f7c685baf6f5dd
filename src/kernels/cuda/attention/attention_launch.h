// Launch interface between attention.cc, which validates, and the .cu files of attention. Internal
// to kernels/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/launch.h"

namespace switchyard::cuda {

// Arguments of both kinds of attention. Latent attention has one key-value head, whose values are
// the first v_dim elements of its keys.
struct AttentionLaunch {
  const float* q = nullptr;  // [rows, heads, qk_dim], row stride ldq
  int64_t ldq = 0;
  bool bf16_queries = false;  // AttentionParams::bf16_queries
  const void* k = nullptr;    // [slots, kv_heads, qk_dim]
  const void* v = nullptr;    // [slots, kv_heads, v_width]; a value is the first v_dim of these
  DType kv_dtype = DType::kF32;
  const float* k_scales = nullptr;  // [kv_heads] AttentionParams::k_scales
  const float* v_scales = nullptr;
  int heads = 0, kv_heads = 0, qk_dim = 0, v_dim = 0;
  int v_width = 0;  // v_dim; latent attention, whose values are parts of keys: qk_dim
  float scale = 1.0f;
  float value_scale = 1.0f;      // factor of all values
  int window = 0, chunk = 0;     // AttentionParams; at most one is not 0
  const float* sinks = nullptr;  // [heads] or null
  float* out = nullptr;          // [rows, heads, v_dim], row stride ldo
  int64_t ldo = 0;
  __nv_bfloat16* bf16_out = nullptr;  // instead of `out`, on Hopper
  SequenceTable table;
  float* scratch = nullptr;
  int64_t scratch_floats = 0;
  bool hopper = false;  // the device supports wgmma

  bool codes() const { return kv_dtype == DType::kF8E4M3; }
};

// Whether the tensor core kernels have tiles for these sizes: heads of 64, 128 or 256, keys of 192
// with values of 128, and latents of 512 + 64.
inline bool HasAttentionTiles(int qk_dim, int v_dim, bool latent) {
  if (latent) return qk_dim == 576 && v_dim == 512;
  if (qk_dim != v_dim) return qk_dim == 192 && v_dim == 128;
  return qk_dim == 64 || qk_dim == 128 || qk_dim == 256;
}

// Launches the kernel with float32 products, for any head size and cache dtype.
cudaError_t LaunchSimtAttention(const AttentionLaunch& launch, cudaStream_t stream);
// Launches the tensor core kernels for a bfloat16 or e4m3 cache and the sizes of HasAttentionTiles.
// Otherwise, or if shared memory is too small, returns cudaErrorNotSupported without launching.
cudaError_t StartTiledAttention(const AttentionLaunch& launch, const PdlStream& chain);
cudaError_t StartTiledLatentAttention(const AttentionLaunch& launch, const PdlStream& chain);
// Launches the wgmma kernels on Hopper, for sequences in which rows times query heads per key-value
// head are at least min_rows. Head sizes 64 and 128, or latents.
cudaError_t StartHopperAttention(const AttentionLaunch& launch, int min_rows,
                                 const PdlStream& chain);
cudaError_t StartHopperLatentAttention(const AttentionLaunch& launch, int min_rows,
                                       const PdlStream& chain);

}  // namespace switchyard::cuda
