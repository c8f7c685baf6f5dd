#include "bench/cpu/peaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string_view>

namespace switchyard::bench {
namespace {

TEST(PeakLoopsTest, EachRunsAndHasAName) {
  std::set<std::string_view> names;
  for (const PeakLoop& loop : PeakLoops()) {
    EXPECT_TRUE(names.insert(loop.name).second) << loop.name;
    EXPECT_GT(loop.operations, 0.0) << loop.name;
    loop.run(10);
  }
}

TEST(PeakLoopsTest, WiderInstructionsCountMoreOperations) {
  const auto loops = PeakLoops();
  if (!__builtin_cpu_supports("avx512vnni")) GTEST_SKIP() << "requires AVX-512 with VNNI";
  // An int8 instruction computes four times as many products as a float32 instruction.
  EXPECT_EQ(FindPeakLoop(loops, "int8 avx512").operations,
            4 * FindPeakLoop(loops, "float32 avx512").operations);
}

}  // namespace
}  // namespace switchyard::bench
