// Problem: products of any size and format, and the choice of the kernel of a product.
// Tiling: a block has 64 × 64 elements of D, a thread 4 × 4 of them.
// Pipeline: none; 16 inner elements at a time in shared memory. Measured: not measured.
#include "train/cuda/launch.cuh"
#include "train/cuda/products.h"
#include "train/cuda/products_problem.h"
#include "train/cuda/refuse.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kTile = 64;   // rows and columns of D per block
constexpr int kDepth = 16;  // inner elements per step
constexpr int kThreads = 256;
constexpr int kPart = 4;  // rows and columns of a thread

// The product of one group: D(i, j) (+)= Σ_p A(i, p) · B(p, j).
struct Part {
  int64_t a, a_row, a_inner;  // A(i, p) is at a + i · a_row + p · a_inner
  int64_t b, b_inner, b_column;
  int64_t d, d_row;
  int64_t m, n, inner;
};

__device__ __forceinline__ int64_t BeginOf(const ProductShape& s, int group) {
  return s.begins != nullptr ? s.begins[group] : group == 0 ? 0 : s.rows;
}

__device__ Part PartOf(const ProductProblem& p, int group) {
  const ProductShape& s = p.shape;
  const int64_t begin = BeginOf(s, group), rows = BeginOf(s, group + 1) - begin;
  const int64_t weight = group * s.group_stride;
  switch (p.form) {
    case ProductForm::kForward:
      return {begin * s.ldx, s.ldx, 1, weight, 1, s.ldw, begin * s.ldy, s.ldy, rows, s.n, s.k};
    case ProductForm::kInputGradient:
      return {begin * s.ldy, s.ldy, 1, weight, s.ldw, 1, begin * s.ldx, s.ldx, rows, s.k, s.n};
    default:
      return {begin * s.ldy, 1, s.ldy, begin * s.ldx, s.ldx, 1, weight, s.ldw, s.n, s.k, rows};
  }
}

// The group of a row tile, and its first row in the group. Returns false beyond the last group.
__device__ bool FindTile(const ProductShape& s, int64_t tile, int* group, int64_t* row) {
  for (int g = 0; g < s.groups; ++g) {
    const int64_t tiles = (BeginOf(s, g + 1) - BeginOf(s, g) + kTile - 1) / kTile;
    if (tile < tiles) {
      *group = g;
      *row = tile * kTile;
      return true;
    }
    tile -= tiles;
  }
  return false;
}

// Multiply-adds in ascending order of the inner dimension. Grid: columns of D, row tiles of all
// groups (weight gradients: of one group), and for weight gradients the groups.
__global__ void __launch_bounds__(kThreads) PlainProductKernel(ProductProblem p) {
  __shared__ float a_tile[kDepth][kTile + 1], b_tile[kDepth][kTile + 1];
  int group = static_cast<int>(blockIdx.z);
  int64_t row = int64_t{blockIdx.y} * kTile;
  if (p.form != ProductForm::kWeightGradient && !FindTile(p.shape, blockIdx.y, &group, &row))
    return;
  const Part part = PartOf(p, group);
  const int64_t column = int64_t{blockIdx.x} * kTile;
  if (p.accumulate && part.inner == 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int i0 = thread / (kTile / kPart) * kPart, j0 = thread % (kTile / kPart) * kPart;
  float sums[kPart][kPart] = {};
  for (int64_t first = 0; first < part.inner; first += kDepth) {
    for (int e = thread; e < kTile * kDepth; e += kThreads) {
      // Neighboring threads read neighboring elements of the operand.
      const int ia = part.a_inner == 1 ? e / kDepth : e % kTile;
      const int pa = part.a_inner == 1 ? e % kDepth : e / kTile;
      const bool there = row + ia < part.m && first + pa < part.inner;
      a_tile[pa][ia] =
          there ? LoadOne(p.a, part.a + (row + ia) * part.a_row + (first + pa) * part.a_inner)
                : 0.0f;
      const int jb = part.b_inner == 1 ? e / kDepth : e % kTile;
      const int pb = part.b_inner == 1 ? e % kDepth : e / kTile;
      const bool is_b = column + jb < part.n && first + pb < part.inner;
      b_tile[pb][jb] =
          is_b ? LoadOne(p.b, part.b + (first + pb) * part.b_inner + (column + jb) * part.b_column)
               : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kDepth; ++q) {
#pragma unroll
      for (int i = 0; i < kPart; ++i)
#pragma unroll
        for (int j = 0; j < kPart; ++j)
          sums[i][j] = fmaf(a_tile[q][i0 + i], b_tile[q][j0 + j], sums[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < kPart; ++i) {
    for (int j = 0; j < kPart; ++j) {
      if (row + i0 + i >= part.m || column + j0 + j >= part.n) continue;
      const int64_t at = part.d + (row + i0 + i) * part.d_row + column + j0 + j;
      StoreOne(p.d, at, p.accumulate ? LoadOne(p.d, at) + sums[i][j] : sums[i][j]);
    }
  }
}

void StartPlainProduct(const ProductProblem& p, Stream stream) {
  const ProductShape& s = p.shape;
  // Every group adds at most one incomplete row tile.
  const int64_t row_tiles = CeilDiv(s.rows, kTile) + s.groups;
  const dim3 grid = p.form == ProductForm::kForward ? Grid(CeilDiv(s.n, kTile), row_tiles)
                    : p.form == ProductForm::kInputGradient
                        ? Grid(CeilDiv(s.k, kTile), row_tiles)
                        : Grid(CeilDiv(s.k, kTile), CeilDiv(s.n, kTile), s.groups);
  if (grid.y > 65535)
    Refuse("plain product of {} rows and {} outputs: too large for one launch", {s.rows, s.n});
  Launch("plain product", PlainProductKernel, grid, kThreads, 0, stream, p);
}

bool Aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

ProductShape WithStrides(ProductShape s) {
  if (s.ldx == 0) s.ldx = s.k;
  if (s.ldy == 0) s.ldy = s.n;
  if (s.ldw == 0) s.ldw = s.k;
  if (s.group_stride == 0) s.group_stride = s.n * s.ldw;
  return s;
}

bool Fits(const ProductShape& s) {
  return (s.n | s.k | s.ldx | s.ldy | s.ldw | s.group_stride) % 8 == 0;
}

void Run(ProductProblem p, Stream stream) {
  p.shape = WithStrides(p.shape);
  const ProductShape& s = p.shape;
  if (s.groups < 1 || s.groups > kMaxProductGroups)
    Refuse("product with {} groups, want 1 to {}", {s.groups, kMaxProductGroups});
  if (s.begins == nullptr && s.groups > 1)
    Refuse("product with {} groups and no row ranges", {s.groups});
  if (s.rows < 0 || s.n < 1 || s.k < 1)
    Refuse("product of {} rows, {} outputs and {} inputs", {s.rows, s.n, s.k});
  const bool rounded = p.a.bf16 && p.b.bf16;
  const bool aligned = Aligned16(p.a.data) && Aligned16(p.b.data) && Aligned16(p.d.data);
  if (rounded && aligned && Fits(s) && s.rows > 0 && switchyard::cuda::IsHopper()) {
    StartWgmmaProduct(p, stream);
  } else {
    StartPlainProduct(p, stream);
  }
}

}  // namespace

void LinearForward(const ProductShape& shape, ConstArray x, ConstArray w, Array y, bool accumulate,
                   Stream stream) {
  Run({ProductForm::kForward, shape, x, w, y, accumulate}, stream);
}

void LinearInputGradient(const ProductShape& shape, ConstArray dy, ConstArray w, Array dx,
                         bool accumulate, Stream stream) {
  Run({ProductForm::kInputGradient, shape, dy, w, dx, accumulate}, stream);
}

void LinearWeightGradient(const ProductShape& shape, ConstArray dy, ConstArray x, float* dw,
                          bool accumulate, Stream stream) {
  Run({ProductForm::kWeightGradient, shape, dy, x, dw, accumulate}, stream);
}

bool UsesTensorCores(const ProductShape& shape) {
  return Fits(WithStrides(shape)) && shape.rows > 0 && switchyard::cuda::IsHopper();
}

}  // namespace switchyard::train::gpu
