// Row-wise and elementwise operations, forward and backward. Semantics: train/layers/pointwise.h.
// Row lengths and strides are multiples of 4 elements, and arrays are aligned to 4 elements, unless
// a comment states otherwise. Each array of a call may be float32 or bfloat16.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// RMSNorm, optionally after a residual addition.

struct RmsNormParams {
  int64_t m = 0, n = 0;
  int64_t ldx = 0;  // stride of x; 0: n. All other arrays are dense
  float eps = 0;
  ConstArray x;                   // [m, n]
  ConstArray addend;              // [m, n] or null: the norm's input is x + addend
  Array sum;                      // [m, n] x + addend; may be x or the addend. Null: not stored
  const float* weight = nullptr;  // [n]
  Array y;                        // [m, n]; may be x if ldx is n
};
// y[t] = h / sqrt(mean(h²) + eps) · weight with h = x[t] + addend[t], after rounding to sum's type
void RmsNorm(const RmsNormParams& p, Stream stream);

struct RmsNormGradientParams {
  int64_t m = 0, n = 0;
  int64_t ldx = 0;  // stride of x and dx; 0: n
  float eps = 0;
  ConstArray x;  // [m, n] the norm's input
  const float* weight = nullptr;
  ConstArray dy;             // [m, n] dense
  Array dx;                  // [m, n]; may be dy if ldx is n
  bool accumulate = false;   // dx += instead of dx =
  float* dweight = nullptr;  // [n] += the gradient of the weight; null: not computed
  float* scratch = nullptr;  // RmsNormScratch(m, n) floats; needed if dweight is set
};
int64_t RmsNormScratch(int64_t m, int64_t n);
// With dx == dy the gradient of the weight is computed first.
void RmsNormGradient(const RmsNormGradientParams& p, Stream stream);

// Rotary embedding in place on the elements [offset, offset + rotary_dim) of each head.
// rotary_dim is a multiple of 2.
struct RopeParams {
  int64_t m = 0, heads = 0;
  int64_t row = 0, head = 0;  // strides of a row and of a head
  int64_t rotary_dim = 0, offset = 0;
  bool interleaved = false;            // pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  const int32_t* positions = nullptr;  // [m]
  const float* cos_sin = nullptr;      // [positions, rotary_dim]: BuildCosSin (model/rope.h)
  Array x;
};
// `backward`: rotates in the opposite direction.
void Rope(const RopeParams& p, bool backward, Stream stream);

// Gate and up of a feed-forward layer. Of rows whose number is known on the device only,
// `valid_rows` (null: all) gives the number of rows to process; other rows are not written.
struct SwiGluParams {
  int64_t m = 0, n = 0;
  int64_t ld = 0;       // stride of gate, up, dgate and dup: 2 · n if they are halves of one array
  ConstArray gate, up;  // [m, n]
  const int32_t* valid_rows = nullptr;  // [1]
};
// out [m, n] dense = silu(gate) · up
void SwiGlu(const SwiGluParams& p, Array out, Stream stream);
// dgate and dup may be gate and up. `out`: computed again, unless null; may be dout.
void SwiGluGradient(const SwiGluParams& p, ConstArray dout, Array dgate, Array dup, Array out,
                    Stream stream);

// y[i] += x[i]
void Add(Array y, ConstArray x, int64_t count, Stream stream);
// to[i] = from[i], converted. Used for bfloat16 copies of float32 weights.
void Convert(ConstArray from, Array to, int64_t count, Stream stream);
// to[t, 0 .. n) (+)= from[t, 0 .. n) for rows with strides.
void CopyRows(ConstArray from, int64_t ld_from, Array to, int64_t ld_to, int64_t m, int64_t n,
              bool accumulate, Stream stream);

// out[t] = table[ids[t]]; ids [m]. Also gathers the rows that have a target, with the table x.
void Embed(const int32_t* ids, int64_t m, ConstArray table, int64_t width, Array out,
           Stream stream);

// Rows in order of their token, on the host. Upload the vectors for EmbedGradient.
struct TokenOrder {
  std::vector<int32_t> rows;    // [m] rows by token, ascending for each token
  std::vector<int32_t> begins;  // [distinct + 1] the rows of each token that occurs
  std::vector<int32_t> tokens;  // [distinct]
};
TokenOrder OrderByToken(std::span<const int32_t> ids);
struct EmbedGradientParams {
  const int32_t *rows = nullptr, *begins = nullptr, *tokens = nullptr;  // of TokenOrder
  int64_t distinct = 0;
  int64_t width = 0;
  ConstArray dout;          // [m, width]
  float* dtable = nullptr;  // [V, width] += in ascending order of rows
};
void EmbedGradient(const EmbedGradientParams& p, Stream stream);

// Keys of latent attention (MLA): each head has its own part (nope), followed by the part (rope)
// that all heads share.
struct LatentKeysParams {
  int64_t m = 0, heads = 0;
  int64_t nope = 0, rope = 0, value = 0, lora = 0;
};
// k [m, heads, nope + rope], before the rotation of the shared part. kv [m, heads, nope + value],
// latent [m, lora + rope].
void JoinLatentKeys(const LatentKeysParams& p, ConstArray kv, ConstArray latent, Array k,
                    Stream stream);
// The reverse, for gradients: dk's own parts → dkv [m, heads, nope + value], whose value parts
// stay; its shared parts, summed over heads in order, → dlatent [m, lora + rope] from column lora
// on.
void SplitLatentKeys(const LatentKeysParams& p, ConstArray dk, Array dkv, Array dlatent,
                     Stream stream);

}  // namespace switchyard::train::gpu
