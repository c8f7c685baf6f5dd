// Which of the two kernels multiplies, and with tiles of what size. The choice changes time only:
// both add along K in the same order.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

struct GemmPlan {
  // Weights stand on the side of wgmma that is 64 rows, tokens on the side of 16 to 192: no work is
  // done for rows that are not there. Else tokens stand on the side of 64, 128 a block.
  bool few_rows = false;
  int weight_rows = 0;  // of a block's tile: 16, 32, 64 or 128; many rows: 192 (FP8) or 256
  int cluster = 1;      // blocks that share the rows of A which they read: 1 or 2
  // 128-byte steps along K that are brought at a time: 1, or 4 where m and weight_rows are at most
  // 64, K · element size is a multiple of 128 and there is no cluster.
  int steps = 1;

  bool operator==(const GemmPlan&) const = default;
};

// The sides of tiles, which the kernels are written for.
constexpr int kManyRowsTokens = 128;
constexpr int kManyRowsWeightsFp8 = 192, kManyRowsWeightsBf16 = 256;
constexpr int kFewRowsMaxTokens = 192;
constexpr int kFourStepsMaxTokens = 64, kFourStepsMaxWeights = 64;
// wgmma's side that so many rows need, as few rows are: 16, 32, 64, 96, … 192.
int TileTokens(int64_t m);

GemmPlan PlanManyRows(bool fp8);
// Groups whose rows only the device knows, on a GPU of so many multiprocessors.
GemmPlan PlanFewRows(int64_t groups, int64_t n, int processors);
// One group of m rows.
GemmPlan PlanDenseGemm(bool fp8, int64_t m, int64_t n, int64_t k, int processors);

}  // namespace switchyard::cuda
