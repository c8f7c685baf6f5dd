// Fused versions of consecutive Device ops, bit-identical to running the ops separately. Only some
// devices have them (Device::fused).
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace switchyard::kernels {

// x[t] += add[t]; the RMS norm of x[t] goes to y[t], to bf16_rows[t] rounded to bfloat16, or to
// both. Fuses AddInPlace and RmsNorm.
struct AddNormParams {
  float* x = nullptr;             // [m, n]
  const float* add = nullptr;     // [m, n] or null: no residual add
  const float* weight = nullptr;  // [n]
  float* y = nullptr;             // [m, n] or null
  void* bf16_rows = nullptr;      // [m, n] bfloat16, or null
  int64_t m = 0, n = 0;           // n: a multiple of 4
  float eps = 1e-6f;
};

// Fuses the steps between the QKV projection and attention: RMS norm per head, rotary embedding,
// and the store of keys and values to the cache. Queries are updated in place; keys and values in
// `qkv` are not modified. Same results as RmsNorm per head, Rope and StoreKv.
struct NormRopeStoreKvParams {
  float* qkv = nullptr;           // [m, heads + 2 kv_heads, head_dim]: queries, keys, values
  const float* q_norm = nullptr;  // [head_dim], or null: no norm of queries and keys
  const float* k_norm = nullptr;
  int64_t m = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 1e-6f;
  int64_t rotary_dim = 0;  // as in RopeParams; starts at a head's first element
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [positions, rotary_dim]
  const int32_t* slots = nullptr;      // [m]; negative: not stored
  void* k_cache = nullptr;             // [slots, kv_heads, head_dim] of kv_dtype
  void* v_cache = nullptr;
  DType kv_dtype = DType::kF32;
  // Stores each query head rounded to bfloat16, in the first half of its place (AttentionParams).
  bool bf16_queries = false;
};

// Threading, memory and ordering are as for Device.
class FusedOps {
 public:
  virtual void AddNorm(const AddNormParams& p) = 0;
  // Whether NormRopeStoreKv supports this head size.
  virtual bool SupportsHeads(int64_t head_dim, int64_t rotary_dim) const = 0;
  virtual void NormRopeStoreKv(const NormRopeStoreKvParams& p) = 0;

  // Concatenates the rows of placed matrices into one matrix for a single product. All matrices
  // must be bfloat16, or FP8 blocks whose rows are whole blocks, and have the same number of
  // columns and the same activation format; otherwise returns an undefined view.
  virtual WeightView ConcatenateRows(std::span<const WeightView> parts) = 0;
  // Whether Attention supports `bf16_queries` and `bf16_out`, which round as Attention does itself.
  virtual bool AttentionToBFloat16(const AttentionParams& p) const = 0;

  // Whether Linear would only round its input rows to bfloat16. The producer may then write
  // bfloat16 rows directly and call LinearOfBFloat16Rows, which does not read p.x.
  virtual bool ReadsBFloat16Rows(const LinearParams& p) const = 0;
  virtual void LinearOfBFloat16Rows(const LinearParams& p, const void* bf16_rows) = 0;  // [m, k]

 protected:
  ~FusedOps() = default;
};

}  // namespace switchyard::kernels
