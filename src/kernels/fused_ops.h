// Ops that do at once what several ops of a Device do one after the other, with the same bits. Only
// some devices have them (Device::fused).
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace switchyard::kernels {

// x[t] += add[t]; the RMS norm of x[t] goes to y[t], to halves[t] rounded to bfloat16, or to both.
// As AddInPlace and RmsNorm.
struct AddNormParams {
  float* x = nullptr;             // [m, n]
  const float* add = nullptr;     // [m, n] or null: nothing is added
  const float* weight = nullptr;  // [n]
  float* y = nullptr;             // [m, n] or null
  void* halves = nullptr;         // [m, n] bfloat16, or null
  int64_t m = 0, n = 0;           // n: a multiple of 4
  float eps = 1e-6f;
};

// What becomes of a layer's queries, keys and values between their product and attention: norm of
// each head, rotary embedding, keys and values into the cache. Queries stay where they are, the
// place of keys and values is left as it was. As RmsNorm of heads, Rope and StoreKv.
struct HeadsToCacheParams {
  float* qkv = nullptr;           // [m, heads + 2 kv_heads, head_dim]: queries, keys, values
  const float* q_norm = nullptr;  // [head_dim], or null: no norm of either
  const float* k_norm = nullptr;
  int64_t m = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float eps = 1e-6f;
  int64_t rotary_dim = 0;  // as in RopeParams, from a head's first element
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [positions, rotary_dim]
  const int32_t* slots = nullptr;      // [m]; negative: the row is not stored
  void* k_cache = nullptr;             // [slots, kv_heads, head_dim] of kv_dtype
  void* v_cache = nullptr;
  DType kv_dtype = DType::kF32;
};

// Contract of threads, memory and order: Device's.
class FusedOps {
 public:
  virtual void AddNorm(const AddNormParams& p) = 0;
  // Whether HeadsToCache takes heads of this size.
  virtual bool TakesHeads(int64_t head_dim, int64_t rotary_dim) const = 0;
  virtual void HeadsToCache(const HeadsToCacheParams& p) = 0;

  // One matrix with the rows of all, of placed matrices that one product may read: bfloat16, of as
  // many columns, with the same activation format. An undefined view where they are none.
  virtual WeightView Stack(std::span<const WeightView> parts) = 0;
  // Whether Linear would round its rows to bfloat16 and nothing else: whoever made them may then
  // have them ready, for LinearOfHalves, which does not read p.x.
  virtual bool ReadsHalves(const LinearParams& p) const = 0;
  virtual void LinearOfHalves(const LinearParams& p, const void* halves) = 0;  // [m, k]

 protected:
  ~FusedOps() = default;
};

}  // namespace switchyard::kernels
