// Kernel interface of an instruction set: the inner work of one task, without threads, allocation
// or user-visible types. Drivers (cpu/*.cc) partition an op into tasks and call the kernels through
// a table.
//
// Files compiled for an instruction set may include only headers without inline functions of
// external linkage. Exception: function templates that take the file's own vector type as an
// argument. The linker keeps one copy of an inline function, and that copy must not need AVX-512.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/state_rule.h"
#include "quant/activations.h"
#include "quant/formats.h"

namespace switchyard::kernels::cpu {

// A WeightView without ownership.
struct WeightRef {
  WeightFormat format;
  const void* data;
  const void* scales;
  const void* zeros;
  int32_t group_size;
  float global_scale;
  int64_t stored_k, row0, row_step, col0, n, k;
  // Scalar fallback: converts columns [begin, end) of a row of `view`. Used where a vector would
  // span two scales or start inside a byte (HasVectorRows in simd/rows.h). Column 0 of this
  // WeightRef is column `skip` of the view.
  void (*convert)(const void* view, int64_t row, int64_t begin, int64_t end, float* out);
  const void* view;
  int64_t skip;
  // Only for panels (quant/panels.h), otherwise 0: bytes of the scales of one part, and of all
  // scales of a panel.
  int64_t part_scales, panel_scales;
};

// Row i of an activation is base + (ids ? ids[i] : i) · ld.
struct RowSource {
  const float* base;
  int64_t ld;
  const int32_t* ids;
};

// Int8 input rows: row i is row (ids ? ids[i] : i) of `base`. Row stride `ld` is a multiple of 64;
// padding columns are zero.
struct Int8Source {
  const int8_t* base = nullptr;
  int64_t ld = 0;
  const int32_t* ids = nullptr;
  const Int8Row* rows = nullptr;
};

// Bfloat16 input rows: row i is row (ids ? ids[i] : i) of `base`. Row stride `ld` is a multiple of
// 32; padding columns are zero.
struct BFloat16Source {
  const uint16_t* base = nullptr;
  int64_t ld = 0;
  const int32_t* ids = nullptr;
};

// Int8 input rows of products with 4-bit weights or panels (cpu/int8_blocks.h): row i is row (ids ?
// ids[i] : i) of `base`, `ld` bytes apart. `block`: columns that share a weight scale, a divisor of
// 128.
struct Int8BlockSource {
  const char* base = nullptr;
  int64_t ld = 0;
  const int32_t* ids = nullptr;
  int64_t block = 0;
};

// Computes y[i, n] for rows i in [0, m) and weight rows n in [begin, end).
struct LinearTask {
  WeightRef w;
  RowSource x;       // input of `linear`
  Int8Source codes;  // input of `linear_int8`; weights are kInt8Channel
  // Input of `linear_bf16`, whose weights are kBF16, and of `linear_fp8`, whose weights are
  // kFp8Channel, or kFp8Block from the first column of a block on.
  BFloat16Source bf16_rows;
  // Input of `linear_four_bit`. Weights have HasInt8Blocks. If they are panels, `begin` is a
  // multiple of 16.
  Int8BlockSource blocks;
  int64_t m;
  int64_t begin, end;
  const float* bias;
  float* y;
  int64_t ldy;
  bool accumulate;
  float* scratch;  // LinearScratch(k) floats, see cpu/driver.h
  // First weight row of the thread's probable next task, with the same layout as these rows; null
  // if unknown. Only prefetched, never read.
  const void* next = nullptr;
};

// y[i, c] = Σ_r x[i, r] · W[r, c] for columns c in [begin, end), at most kColumnBlock of them.
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

// Attention of consecutive query rows of one sequence, for heads that share one KV head, over the
// key parts [part_begin, part_end) of kKeyPart keys each. Without `partials` the parts cover all
// keys of the rows, and the task writes the outputs. With `partials` the task has one part and
// writes its partial sums there. A `merge_attention` task over all parts, with `partials` of the
// first one, then combines them.
struct AttentionTask {
  const float* q;  // row r, head g at q + r · ldq + g · k_width
  int64_t ldq;
  int64_t rows, group;     // rows · group at most kQueryBlock
  int64_t first_position;  // position of row 0; causal: a row attends up to its own position
  int64_t window;          // 0: all
  int64_t chunk;           // 0: no chunks
  const void* k;  // key j at k + slot(j) · k_stride bytes; value j at v + slot(j) · v_stride
  const void* v;
  int64_t k_stride, v_stride;
  int64_t k_bytes, v_bytes;  // bytes of a cache row (kernels/cache_rows.h)
  int64_t k_width, v_width;
  bool v_in_k;  // latent cache: a value is the first v_width elements of its key
  DType dtype;
  const int32_t* pages;
  int64_t page_size;
  const int32_t* branch;  // SequenceSpan::branch
  int64_t branch_begin;
  float scale, value_scale;
  const float* sinks;  // sinks of the group's heads, or null
  float* out;          // row r, head g at out + r · ldo + g · v_width
  int64_t ldo;
  float* scratch;  // AttentionScratch(k_width, v_width) floats
  int64_t part_begin, part_end;
  float* partials;
  int64_t partial_stride;  // floats per part: PartialFloats(rows · group, v_width)
};

// A rule of states (kernels/recurrent.h) for all rows of a sequence, one head, and a block of
// columns of its state. q and k are normalised if the rule requires it.
struct DeltaTask {
  StateRule rule;
  const float *q, *k, *v;  // row r at + r · ld; v begins at the block's first column
  int64_t ld;
  const float* gates;  // row r at + r · gates_ld: the decays, then the step
  int64_t gates_ld;
  float skip;  // with kMamba2
  int64_t rows;
  // Key i of the block at + i · stride. `from` null: zeros. `from` and `to` do not overlap.
  const float* from;
  float* to;
  int64_t stride;
  // The state after copy_rows rows is written to copy_to. Null: no copy; such entries come last.
  int64_t copy_rows[kMaxStateCopies];
  float* copy_to[kMaxStateCopies];
  int64_t key_dim;
  int64_t columns;  // at most KernelTable::delta_columns
  float* out;       // row r at + r · ldo
  int64_t ldo;
  float* scratch;  // key_dim · delta_columns floats
};

constexpr int64_t kMaxLanes = 16;
// Row stride of k elements in scratch buffers: whole vectors and one more. So rows of a power of
// two elements do not all map to one L1 set. Always inline: an out-of-line copy could be compiled
// for another instruction set.
[[gnu::always_inline]] constexpr int64_t ScratchStride(int64_t k) {
  return (k + kMaxLanes - 1) / kMaxLanes * kMaxLanes + kMaxLanes;
}
constexpr int64_t kInt4Block = 32;          // columns per zero point and scale in simd/rows.h
constexpr int64_t kColumnBlock = 64;        // columns of a ColumnsTask
constexpr int64_t kColumnDepth = 64;        // rows of W converted at a time
constexpr int64_t kColumnBatch = 32;        // rows of x that share the converted rows
constexpr int64_t kKeyBlock = 64;           // keys per softmax step, aligned to absolute multiples
constexpr int64_t kKeyPart = 2048;          // keys per partial sum, aligned to absolute multiples
constexpr int64_t kQueryBlock = 64;         // query vectors per AttentionTask
constexpr int64_t kInt8MaxDepth = 1 << 17;  // columns whose int8 products fit an int32 sum

struct KernelTable {
  void (*linear)(const LinearTask&);
  void (*linear_int8)(const LinearTask&);
  void (*linear_bf16)(const LinearTask&);  // null if the instruction set has none
  void (*linear_fp8)(const LinearTask&);   // the same
  void (*linear_four_bit)(const LinearTask&);
  void (*columns)(const ColumnsTask&);
  void (*attention)(const AttentionTask&);
  // Bfloat16 products: dtype kBF16, k_width even. Null if the CPU has none.
  void (*attention_bf16)(const AttentionTask&);
  void (*merge_attention)(const AttentionTask&);
  void (*rms_norm)(const float* x, const float* weight, float* y, int64_t n, float eps);
  void (*swiglu)(float* gate, const float* up, int64_t n);  // in place: gate becomes the product
  void (*swiglu_clamped)(float* gate, const float* up, int64_t n, float alpha, float limit);
  void (*add)(float* y, const float* x, int64_t n);
  // Rotates pairs (a[i], b[i]) by the angle with cosine[i] and sine[i].
  void (*rotate)(float* a, float* b, const float* cosine, const float* sine, int64_t n);
  void (*narrow)(DType dtype, const float* x, void* out, int64_t n);  // kF32, kBF16, kF16
  void (*round)(DType dtype, float* x, int64_t n);                    // kBF16, kF16
  // y[c] = silu(bias[c] + Σ_j weight[j · stride + c] · rows[j][c]) for c in [0, n) and j in
  // [0, width). Null bias: zeros.
  void (*short_conv)(const float* const* rows, const float* weight, int64_t stride, int64_t width,
                     const float* bias, float* y, int64_t n);
  void (*multiply_by_sigmoid)(float* x, const float* gate, int64_t n);  // x[i] · sigmoid(gate[i])
  // decays[i] = exp(rate · softplus(a[i] + bias[i])), or with a bound < 0 exp(bound · sigmoid(−rate
  // · (a[i] + bias[i])))
  void (*key_decays)(const float* a, const float* bias, float rate, float bound, float* decays,
                     int64_t n);
  void (*delta)(const DeltaTask&);
  int64_t delta_columns;  // columns of a whole block of DeltaTask
};

namespace avx2 {
void Linear(const LinearTask& t);
void LinearInt8(const LinearTask& t);
void LinearFourBit(const LinearTask& t);
extern const KernelTable kKernels;
}  // namespace avx2
namespace avx512 {
void Linear(const LinearTask& t);
void LinearInt8(const LinearTask& t);        // needs VNNI
void LinearBF16(const LinearTask& t);        // needs AVX512_BF16
void LinearFp8BF16(const LinearTask& t);     // needs AVX512_BF16 and AVX512_VBMI
void LinearFourBit(const LinearTask& t);     // needs VNNI
void AttentionBF16(const AttentionTask& t);  // needs AVX512_BF16
extern const KernelTable kKernels;  // int8 and 4 bits: of AVX2; linear_bf16, linear_fp8: null
}  // namespace avx512
namespace amx {
void LinearInt8(const LinearTask& t);
void LinearBF16(const LinearTask& t);
}  // namespace amx

}  // namespace switchyard::kernels::cpu
