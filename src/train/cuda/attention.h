// Causal attention over packed sequences, forward and backward. Semantics:
// train/layers/attention.h.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// [rows, heads, n]: element (t, h, i) is at t · row + h · head + i.
struct HeadArray {
  ConstArray data;
  int64_t row = 0, head = 0;
};
struct MutableHeadArray {
  Array data;
  int64_t row = 0, head = 0;
  operator HeadArray() const { return {data, row, head}; }  // NOLINT(google-explicit-constructor)
};

// Kernels for bfloat16 tiles: those of this or of a later entry that the GPU supports.
enum class AttentionTiles { kHopper, kOneWarpgroup, kMmaSync };

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0;  // query head h reads key head h / (heads / kv_heads)
  int64_t qk_dim = 0, v_dim = 0;
  float scale = 1;     // factor of the scores
  int32_t window = 0;  // position p attends to key j if p - j < window; 0: all
  int64_t rows = 0;
  int sequences = 0;
  const int32_t* begins = nullptr;  // [sequences + 1] ascending from 0 to `rows`
  int64_t longest = 0;              // rows of the longest sequence, known on the host
  AttentionTiles tiles = AttentionTiles::kHopper;  // others: for tests and benchmarks
};

// Two kernels:
//
// - All arrays bfloat16, head dimensions (qk_dim, v_dim) (64, 64), (128, 128) or (192, 128),
//   strides and addresses multiples of 8 elements: tensor cores (wgmma on Hopper, else mma.sync).
//   Probabilities and gradients of scores are rounded to bfloat16 for the products, as on CPUs with
//   bfloat16 products. Hopper's fastest kernels also need arrays whose rows contain all heads.
// - Everything else: float32 multiply-adds, for head dimensions up to 256. This is slow, and meant
//   for tests and small models.
//
// log_sums [heads, rows]: the log-sum-exp of each row's scores, for the backward pass.
void Attention(const AttentionShape& shape, HeadArray q, HeadArray k, HeadArray v,
               MutableHeadArray out, float* log_sums, Stream stream);

// Writes dq, dk and dv. dk and dv of a key head are sums over its query heads in order. `along`:
// scratch [heads, rows] floats.
struct AttentionGradientParams {
  AttentionShape shape;
  HeadArray q, k, v, out, dout;
  const float* log_sums = nullptr;
  float* along = nullptr;
  MutableHeadArray dq, dk, dv;
};
void AttentionGradient(const AttentionGradientParams& p, Stream stream);

}  // namespace switchyard::train::gpu
