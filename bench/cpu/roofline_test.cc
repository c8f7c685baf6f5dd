#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/benches.h"
#include "bench/cpu/machine.h"
#include "bench/cpu/memory_loops.h"
#include "core/parallel.h"

namespace switchyard::bench {
namespace {

TEST(MachineTest, CachesAscendAndHaveSizes) {
  int level = 0;
  for (const Cache& cache : Caches()) {
    EXPECT_GE(cache.level, level);
    EXPECT_GT(cache.bytes, 0);
    level = cache.level;
  }
}

TEST(MachineTest, TheCpuHasANameWithoutSpacesAround) {
  const std::string name = CpuName();
  ASSERT_FALSE(name.empty());
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
}

TEST(MemoryLoopsTest, RatesArePositive) {
  ThreadPool pool(2);
  MemoryLoops loops(pool, 1 << 20);
  EXPECT_GT(loops.Read(0), 0.0);
  EXPECT_GT(loops.Read(1536), 0.0);
  EXPECT_GT(loops.ReadAgain(4096), 0.0);
  EXPECT_GT(loops.Copy(), 0.0);
  EXPECT_GT(loops.Fill(), 0.0);
}

TEST(RooflineTest, LinesAreRatesAndTheMachineIsDescribed) {
  Report report("multiply", stdout, /*progress=*/false);
  CpuRoofline({.threads = 2}, report);
  for (const Result& result : report.results()) {
    EXPECT_GT(result.seconds, 0.0) << result.shape;
    EXPECT_GT(result.flops, 0.0) << result.shape;
    EXPECT_EQ(result.limit.bound, Bound::kUnknown) << result.shape;
  }
  const std::string file = testing::TempDir() + "/switchyard_roofline_test.json";
  report.WriteJson("roofline", "cpu", file);
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["machine"][0]["what"], "cpu");
  EXPECT_THAT(json["machine"][0]["text"].get<std::string>(), ::testing::HasSubstr("cores"));
  EXPECT_EQ(json["cases"].size(), report.results().size());
}

}  // namespace
}  // namespace switchyard::bench
