// Problem: products with float32 weights on tensor cores. Each number becomes the sum of two or
// three bfloat16 numbers, which are stacked into one product (products_wgmma.cu).
// Tiling: one thread per element, to split numbers and to add the parts of sums.
// Pipeline: none. Measured: not measured alone.
#include <algorithm>

#include "train/cuda/launch.cuh"
#include "train/cuda/products.h"
#include "train/cuda/router_products.h"

namespace switchyard::train::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 3;  // stacked blocks of parts

// The part of a number that each stacked block has.
struct Pattern {
  int parts[kBlocks];
};

// Splits from [rows, n]: element (row, i) of block b goes to to[row · row_stride + b · block_stride
// + i].
__global__ void SplitKernel(const float* from, int64_t rows, int64_t n, Pattern pattern,
                            int64_t row_stride, int64_t block_stride, uint16_t* to) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= rows * n) return;
  uint32_t bits[kBlocks];
  float left = from[at];
#pragma unroll
  for (int part = 0; part < kBlocks; ++part) {
    bits[part] = PackPair(left, 0.0f) & 0xffffu;
    left -= Low(bits[part]);
  }
  uint16_t* place = to + at / n * row_stride + at % n;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const int part = pattern.parts[b];
    place[b * block_stride] = static_cast<uint16_t>(part == 0   ? bits[0]
                                                    : part == 1 ? bits[1]
                                                                : bits[2]);
  }
}

// logits[t, e] = Σ_b blocks[t, b · n + e], the smallest ones first.
__global__ void AddBlocksKernel(const float* blocks, int64_t m, int64_t n, float* logits) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= m * n) return;
  const float* row = blocks + at / n * kBlocks * n + at % n;
  logits[at] = row[0] + (row[n] + row[2 * n]);
}

void Split(const float* from, int64_t rows, int64_t n, Pattern pattern, int64_t row_stride,
           int64_t block_stride, BF16* to, Stream stream) {
  Launch("parts of float32 numbers", SplitKernel, Grid(CeilDiv(rows * n, kThreads)), kThreads, 0,
         stream, from, rows, n, pattern, row_stride, block_stride, reinterpret_cast<uint16_t*>(to));
}

bool TakesParts(const RouterProduct& p) {
  return UsesTensorCores({.rows = p.m, .n = p.n, .k = p.k}) &&
         reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
}

// The stacked weights are at the beginning of the scratch memory.
int64_t WeightBytes(int64_t n, int64_t k) { return RoundUp(kBlocks * n * k * 2, 16); }

}  // namespace

int64_t RouterProductScratch(int64_t m, int64_t n, int64_t k) {
  return WeightBytes(n, k) + kBlocks * m * n * 4;
}

void RouterLogits(const RouterProduct& p, float* logits, Stream stream) {
  if (!TakesParts(p)) {
    LinearForward({.rows = p.m, .n = p.n, .k = p.k}, p.x, p.w, logits, false, stream);
    return;
  }
  auto* weights = static_cast<BF16*>(p.scratch);
  auto* blocks = reinterpret_cast<float*>(static_cast<char*>(p.scratch) + WeightBytes(p.n, p.k));
  Split(p.w, p.n, p.k, {{0, 1, 2}}, p.k, p.n * p.k, weights, stream);
  LinearForward({.rows = p.m, .n = kBlocks * p.n, .k = p.k}, p.x, weights, blocks, false, stream);
  Launch("sums of parts", AddBlocksKernel, Grid(CeilDiv(p.m * p.n, kThreads)), kThreads, 0, stream,
         blocks, p.m, p.n, logits);
}

void RouterProductGradients(const RouterProduct& p, const float* dlogits, float* dx, float* dw,
                            Stream stream) {
  const ProductShape one = {.rows = p.m, .n = p.n, .k = p.k};
  if (!TakesParts(p)) {
    LinearInputGradient(one, dlogits, p.w, dx, true, stream);
    LinearWeightGradient(one, dlogits, p.x, dw, true, stream);
    return;
  }
  auto* weights = static_cast<BF16*>(p.scratch);
  auto* gradients = reinterpret_cast<BF16*>(static_cast<char*>(p.scratch) + WeightBytes(p.n, p.k));
  // d0 · W0 + d0 · W1 + d1 · W0, as one product whose inner dimension is stacked.
  const int64_t width = kBlocks * p.n;
  Split(p.w, p.n, p.k, {{0, 1, 0}}, p.k, p.n * p.k, weights, stream);
  Split(dlogits, p.m, p.n, {{0, 0, 1}}, width, p.n, gradients, stream);
  LinearInputGradient({.rows = p.m, .n = width, .k = p.k}, gradients, weights, dx, true, stream);
  ProductShape part = one;
  part.ldy = width;
  for (const int64_t block : {0, 2})
    LinearWeightGradient(part, gradients + block * p.n, p.x, dw, true, stream);
}

}  // namespace switchyard::train::gpu
