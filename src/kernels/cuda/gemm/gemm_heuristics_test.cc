#include <gtest/gtest.h>

#include "kernels/cuda/gemm/gemm_problem.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int kProcessors = 132;  // SMs of an H200

int64_t Tiles(const GemmPlan& plan, int64_t n) { return CeilDiv(n, plan.weight_rows); }

TEST(GemmHeuristics, FewTokensReadSmallMatricesWithEnoughMultiprocessors) {
  for (const int64_t n : {1536, 2048, 4096, 7168})
    for (const int64_t m : {1, 8, 32}) {
      const GemmPlan plan = PlanDenseGemm(false, m, n, 4096, kProcessors);
      EXPECT_TRUE(plan.few_rows);
      EXPECT_GE(Tiles(plan, n), 48) << "m " << m << ", n " << n;
    }
}

TEST(GemmHeuristics, ManyTokensTakeTheLargestTiles) {
  for (const bool fp8 : {false, true})
    EXPECT_EQ(PlanDenseGemm(fp8, 8192, 7168, 4096, kProcessors), PlanManyRows(fp8));
}

TEST(GemmHeuristics, PlansAreOnesThatKernelsAreWrittenFor) {
  for (const bool fp8 : {false, true})
    for (int64_t m = 1; m < 10000; m = m * 5 / 4 + 1)
      for (int64_t n = 1; n < 200000; n = n * 3 / 2 + 7) {
        const GemmPlan plan = PlanDenseGemm(fp8, m, n, 2048, kProcessors);
        if (!plan.few_rows) {
          EXPECT_EQ(plan, PlanManyRows(fp8));
          continue;
        }
        EXPECT_TRUE(plan.weight_rows == 16 || plan.weight_rows == 32 || plan.weight_rows == 64 ||
                    plan.weight_rows == 128);
        EXPECT_EQ(plan.cluster == 2, plan.steps == 1 && Tiles(plan, n) % 2 == 0);
        EXPECT_TRUE(plan.steps == 1 || (plan.steps == 4 && m <= 64 && plan.weight_rows <= 64));
      }
}

TEST(GemmHeuristics, GroupsOfFewRowsTakeSmallerTilesWhereThereWouldBeTooFew) {
  EXPECT_EQ(PlanFewRows(32, 4096, kProcessors),
            (GemmPlan{.few_rows = true, .weight_rows = 128, .cluster = 2}));
  EXPECT_EQ(PlanFewRows(1, 4096, kProcessors),
            (GemmPlan{.few_rows = true, .weight_rows = 64, .cluster = 2}));
}

}  // namespace
}  // namespace switchyard::cuda
