// Selection of the GEMM kernel and tile size. It affects time only: both kernels accumulate along K
// in the same order.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

struct GemmPlan {
  // True: swapped operands. Weights are wgmma's 64-row side (M), tokens its N side of 16 to 192, so
  // padding of token rows costs no computation. False: tokens are the 64-row side, 128 per block.
  bool few_rows = false;
  int weight_rows = 0;  // per block tile: 16, 32, 64 or 128; many rows: 192 (FP8) or 256
  int cluster = 1;      // blocks that share rows of A by multicast: 1 or 2
  // 128-byte steps along K per stage, 1 or 4. For 4 steps, m and weight_rows are at most 64, K ·
  // element size is a multiple of 128, and there is no cluster.
  int steps = 1;

  bool operator==(const GemmPlan&) const = default;
};

// Tile sizes that the kernels are compiled for.
constexpr int kManyRowsTokens = 128;
constexpr int kManyRowsWeightsFp8 = 192, kManyRowsWeightsBf16 = 256;
constexpr int kFewRowsMaxTokens = 192;
constexpr int kFourStepsMaxTokens = 64, kFourStepsMaxWeights = 64;
// wgmma's N for m rows in the few-rows kernel: 16, 32, 64, 96, … 192.
int TileTokens(int64_t m);

GemmPlan PlanManyRows(bool fp8);
// Selects a plan for groups whose row counts are on the device, for a GPU with `processors` SMs.
GemmPlan PlanFewRows(int64_t groups, int64_t n, int processors);
// Selects a plan for one group of m rows.
GemmPlan PlanDenseGemm(bool fp8, int64_t m, int64_t n, int64_t k, int processors);

}  // namespace switchyard::cuda
