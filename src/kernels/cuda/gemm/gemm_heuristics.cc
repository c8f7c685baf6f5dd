#include <algorithm>

#include "kernels/cuda/gemm/gemm_problem.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

// Cost model in clocks of a Hopper SM, fitted to measurements on an H200 (dense_gemm_bench
// --plans). A step along K is 128 bytes of each row, four wgmmas.
constexpr double kIngestBytes = 48;    // TMA bytes per clock and SM
constexpr double kMemoryBytes = 2400;  // HBM bytes per clock, all SMs (4.2 TB/s)
// Overhead per tile: prologue of the pipeline and epilogue.
constexpr double kFewRowsTile = 1500, kManyRowsTile = 3000;
constexpr double kManyRowsStep = 1190,
                 kManyRowsStepFp8 = 950;  // clocks of a step of 128 × 256 and of 128 × 192 outputs

// A step waits for TMA, then for its wgmmas in sequence, then (FP8) accumulates scaled sums. Two
// warpgroups (128 weight rows) alternate in the last part.
double FewRowsStep(const GemmPlan& plan, bool fp8, int64_t tile_tokens) {
  const auto tokens = static_cast<double>(tile_tokens);
  const bool two = plan.weight_rows > 64;
  double step;
  if (fp8) {
    step = plan.steps > 1 ? 180 + 4.0 * tokens : two ? 430 + 6.6 * tokens : 270 + 5.0 * tokens;
  } else {
    step = plan.steps > 1 ? 180 : 300 + (two ? 3.4 : 1.8) * tokens;
  }
  return std::max(step, (plan.weight_rows + tokens) * 128 / kIngestBytes);
}

double FewRowsClocks(const GemmPlan& plan, bool fp8, int64_t m, int64_t n, int64_t steps,
                     int processors) {
  const int64_t tiles = CeilDiv(n, plan.weight_rows) * CeilDiv(m, kFewRowsMaxTokens);
  return static_cast<double>(CeilDiv(tiles, processors)) *
         (static_cast<double>(steps) * FewRowsStep(plan, fp8, TileTokens(m)) + kFewRowsTile);
}

double ManyRowsClocks(bool fp8, int64_t m, int64_t n, int64_t steps, int processors) {
  const int side = fp8 ? kManyRowsWeightsFp8 : kManyRowsWeightsBf16;
  const int64_t tiles = CeilDiv(m, kManyRowsTokens) * CeilDiv(n, 2 * side) * 2;
  return static_cast<double>(CeilDiv(tiles, processors)) *
         (static_cast<double>(steps) * (fp8 ? kManyRowsStepFp8 : kManyRowsStep) + kManyRowsTile);
}

// Sharing rows of A in a cluster halves L2 reads; a tile without a partner would be wasted.
int ClusterOf(int64_t n, int weight_rows) { return CeilDiv(n, weight_rows) % 2 == 0 ? 2 : 1; }

}  // namespace

int TileTokens(int64_t m) {
  const int tokens = static_cast<int>(std::min<int64_t>(m, kFewRowsMaxTokens));
  if (tokens <= 32) return tokens <= 16 ? 16 : 32;
  return tokens <= 64 ? 64 : (tokens + 31) / 32 * 32;
}

GemmPlan PlanManyRows(bool fp8) {
  return {.few_rows = false,
          .weight_rows = fp8 ? kManyRowsWeightsFp8 : kManyRowsWeightsBf16,
          .cluster = 2};
}

// Assumes one tile of rows per group. Uses tiles of 64 weights if tiles of 128 would leave more
// than a fifth of the SMs idle in the last wave.
GemmPlan PlanFewRows(int64_t groups, int64_t n, int processors) {
  const auto use = [&](int weight_rows) {
    const int64_t tiles = groups * CeilDiv(n, weight_rows);
    return static_cast<double>(tiles) /
           static_cast<double>(CeilDiv(tiles, processors) * processors);
  };
  const int weight_rows = use(128) < 0.8 && use(64) > use(128) ? 64 : 128;
  return {.few_rows = true, .weight_rows = weight_rows, .cluster = ClusterOf(n, weight_rows)};
}

GemmPlan PlanDenseGemm(bool fp8, int64_t m, int64_t n, int64_t k, int processors) {
  const int64_t row_bytes = k * (fp8 ? 1 : 2), steps = CeilDiv(row_bytes, 128);
  const double memory = static_cast<double>(n * row_bytes) / kMemoryBytes;
  GemmPlan best = PlanManyRows(fp8);
  double best_clocks = std::max(ManyRowsClocks(fp8, m, n, steps, processors), memory);
  // A tie selects the widest plan, which rereads tokens least. Few-rows plans win ties against
  // many-rows plans, because padding of their tiles costs no computation.
  for (const int weight_rows : {16, 32, 64, 128}) {
    GemmPlan plan = {.few_rows = true, .weight_rows = weight_rows};
    if (m <= kFourStepsMaxTokens && weight_rows <= kFourStepsMaxWeights && row_bytes % 128 == 0) {
      plan.steps = 4;
    } else {
      plan.cluster = ClusterOf(n, weight_rows);
    }
    const double clocks = std::max(FewRowsClocks(plan, fp8, m, n, steps, processors), memory);
    if (clocks > best_clocks) continue;
    best_clocks = clocks;
    best = plan;
  }
  return best;
}

}  // namespace switchyard::cuda
