// What every instruction set implements: the inner work of one task, without threads, allocation or
// user-visible types. Drivers (cpu/*.cc) cut an op into tasks and call these through a table.
//
// Files compiled for an instruction set include only headers without inline functions of external
// linkage, or use them only with their own vector type as a template argument: a linker keeps one
// copy of such a function, and it must not be the one that needs AVX-512.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "quant/activations.h"
#include "quant/formats.h"

namespace switchyard::kernels::cpu {

// A WeightView without its owner.
struct WeightRef {
  WeightFormat format;
  const void* data;
  const void* scales;
  const void* zeros;
  int32_t group_size;
  float global_scale;
  int64_t stored_k, row0, row_step, col0, n, k;
  // Converts columns [begin, end) of a row of `view` where no vector path does: when the first
  // column lies inside a block. Column 0 of this part is column `skip` of the view.
  void (*convert)(const void* view, int64_t row, int64_t begin, int64_t end, float* out);
  const void* view;
  int64_t skip;
};

// Row i of an activation is base + (ids ? ids[i] : i) · ld.
struct RowSource {
  const float* base;
  int64_t ld;
  const int32_t* ids;
};

// Row i of an input in int8 is row (ids ? ids[i] : i) of codes, `ld` apart, a multiple of 64, with
// zeros after the last column.
struct Int8Source {
  const int8_t* base = nullptr;
  int64_t ld = 0;
  const int32_t* ids = nullptr;
  const Int8Row* rows = nullptr;
};

// Row i of an input in bfloat16 is row (ids ? ids[i] : i) of base, `ld` apart, a multiple of 32,
// with zeros after the last column.
struct BFloat16Source {
  const uint16_t* base = nullptr;
  int64_t ld = 0;
  const int32_t* ids = nullptr;
};

// y[i, n] for all rows i in [0, m) and the weight rows n in [begin, end).
struct LinearTask {
  WeightRef w;
  RowSource x;            // of `linear`
  Int8Source codes;       // of `linear_int8`, whose weights are kInt8Channel
  BFloat16Source halves;  // of `linear_bf16`, whose weights are kBF16
  int64_t m;
  int64_t begin, end;
  const float* bias;
  float* y;
  int64_t ldy;
  bool accumulate;
  float* scratch;  // LinearScratch(k) floats, see cpu/driver.h
  // The first weight row of what the thread probably multiplies next, rows that lie like these ones
  // in memory; null where that is not known. Never read, only asked for.
  const void* next = nullptr;
};

// y[i, c] = Σ_r x[i, r] · W[r, c] for the columns c in [begin, end), at most kColumnBlock of them.
struct ColumnsTask {
  WeightRef w;
  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  int64_t m;
  int64_t begin, end;
  float* scratch;  // ColumnsScratch() floats
};

// Consecutive query rows of one sequence with the heads that share one KV head, and the keys of the
// parts [part_begin, part_end), of kKeyPart keys each. Without `partials` these are all that the
// rows see, and the outputs are written. With them it is one part, whose sums are left in them for
// `merge_attention`: a task of all parts, with `partials` of the first one.
struct AttentionTask {
  const float* q;  // row r, head g at q + r · ldq + g · k_width
  int64_t ldq;
  int64_t rows, group;     // rows · group at most kQueryBlock
  int64_t first_position;  // of row 0; a row sees keys up to its own position
  int64_t window;          // 0: all
  const void* k;           // key j at k + slot(j) · key_stride bytes; v likewise
  const void* v;
  int64_t key_stride;
  int64_t k_bytes, v_bytes;  // of a row (kernels/cache_rows.h)
  int64_t k_width, v_width;
  bool v_in_k;  // latent cache: a value is the first v_width elements of its key
  DType dtype;
  const int32_t* pages;
  int64_t page_size;
  float scale;
  const float* sinks;  // of the group's heads, or null
  float* out;          // row r, head g at out + r · ldo + g · v_width
  int64_t ldo;
  float* scratch;  // AttentionScratch(k_width, v_width) floats
  int64_t part_begin, part_end;
  float* partials;
  int64_t partial_stride;  // from one part's to the next: PartialFloats(rows · group, v_width)
};

constexpr int64_t kMaxLanes = 16;
// Elements from one row of k that a task keeps in its scratch to the next: rows end in whole
// vectors, and no power of two lies between them, which would bring all into one set of L1. Always
// inline: a copy of its own could be that of another instruction set.
[[gnu::always_inline]] constexpr int64_t ScratchStride(int64_t k) {
  return (k + kMaxLanes - 1) / kMaxLanes * kMaxLanes + kMaxLanes;
}
constexpr int64_t kInt4Block = 32;    // columns; groups that are no multiple take the scalar path
constexpr int64_t kColumnBlock = 64;  // columns of a ColumnsTask
constexpr int64_t kColumnDepth = 64;  // rows of W that it converts at a time
constexpr int64_t kColumnBatch = 32;  // rows of x that share them
constexpr int64_t kKeyBlock = 64;     // keys of one softmax step, at absolute multiples of it
constexpr int64_t kKeyPart = 2048;    // keys that are summed by themselves, at multiples of it
constexpr int64_t kQueryBlock = 64;   // query vectors of an AttentionTask
constexpr int64_t kInt8MaxDepth = 1 << 17;  // columns whose int8 products add up in an int32

struct Leaves {
  void (*linear)(const LinearTask&);
  void (*linear_int8)(const LinearTask&);
  void (*linear_bf16)(const LinearTask&);  // null where the instruction set has none
  void (*columns)(const ColumnsTask&);
  void (*attention)(const AttentionTask&);
  // Products of pairs in bfloat16: dtype kBF16, k_width even. Null where the CPU has none.
  void (*attention_bf16)(const AttentionTask&);
  void (*merge_attention)(const AttentionTask&);
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t n, float eps);
  void (*swiglu)(float* gate, const float* up, int64_t n);  // gate becomes the product
  void (*swiglu_clamped)(float* gate, const float* up, int64_t n, float alpha, float limit);
  void (*add)(float* y, const float* x, int64_t n);
  // Pairs (a[i], b[i]) turned by the angle of cosine[i], sine[i].
  void (*rotate)(float* a, float* b, const float* cosine, const float* sine, int64_t n);
  void (*narrow)(DType dtype, const float* x, void* out, int64_t n);  // kF32, kBF16, kF16
  void (*round)(DType dtype, float* x, int64_t n);                    // kBF16, kF16
};

namespace avx2 {
void Linear(const LinearTask& t);
void LinearInt8(const LinearTask& t);
extern const Leaves kLeaves;
}  // namespace avx2
namespace avx512 {
void Linear(const LinearTask& t);
void LinearInt8(const LinearTask& t);        // wants VNNI
void LinearBF16(const LinearTask& t);        // wants AVX512_BF16
void AttentionBF16(const AttentionTask& t);  // likewise
extern const Leaves kLeaves;                 // its linear_int8 does not, and it has no linear_bf16
}  // namespace avx512
namespace amx {
void LinearInt8(const LinearTask& t);
void LinearBF16(const LinearTask& t);
}  // namespace amx

}  // namespace switchyard::kernels::cpu
