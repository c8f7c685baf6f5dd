// Fused versions of consecutive Device ops, bit-identical to running the ops separately. Only some
// devices have them (Device::fused).
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace switchyard::kernels {

// How a product rounds its input rows before it multiplies them.
enum class RoundedForm {
  kNone,       // not at all, or in a way that the forms below do not describe
  kBFloat16,   // to bfloat16
  kFp8Groups,  // to e4m3 with one float32 scale per 128 elements
};
// Rows in a RoundedForm.
struct RoundedRows {
  RoundedForm form = RoundedForm::kNone;
  void* data = nullptr;     // [m, n] bfloat16 or e4m3, without padding
  float* scales = nullptr;  // kFp8Groups: [n / 128, scale_stride]; column r has the scales of row r
  int64_t scale_stride = 0;  // elements; at least m, a multiple of 4
};

// x[t] += add[t]; the RMS norm of x[t] goes to y[t], to row t of `rounded`, or to both. Fuses
// AddInPlace, RmsNorm and the rounding of a product's input.
struct AddNormParams {
  float* x = nullptr;             // [m, n]
  const float* add = nullptr;     // [m, n] or null: no residual add
  const float* weight = nullptr;  // [n]
  float* y = nullptr;             // [m, n] or null
  RoundedRows rounded;            // form kNone: not written
  int64_t m = 0, n = 0;           // n: a multiple of 4; with kFp8Groups of 128
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
  int64_t rotary_dim = 0;  // as in RopeParams, counted from a head's first element
  bool interleaved = false;
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [positions, rotary_dim]
  const int32_t* slots = nullptr;      // [m]; negative: not stored
  void* k_cache = nullptr;             // [slots, kv_heads, head_dim] of kv_dtype
  void* v_cache = nullptr;
  DType kv_dtype = DType::kF32;
  const float* k_scales = nullptr;  // as in AttentionParams
  const float* v_scales = nullptr;
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

  // Returns the form to which Linear rounds its input rows, or kNone if rounding by the producer of
  // the rows would not be faster. The form may depend on p.m. Unless it is kNone, the producer may
  // write rows in this form and call LinearOfRoundedRows, which does not read p.x.
  virtual RoundedForm InputFormOf(const LinearParams& p) const = 0;
  virtual void LinearOfRoundedRows(const LinearParams& p, const RoundedRows& rows) = 0;  // [m, k]

 protected:
  ~FusedOps() = default;
};

}  // namespace switchyard::kernels
