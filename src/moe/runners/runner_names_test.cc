// Every SGLang backend name is mapped, or rejected with an explanation.
#include "moe/runners/runner_names.h"

#include <functional>
#include <string>

#include "core/error.h"
#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RunnerNamesTest, NearestBackendsExist) {
  const MoeBackends backends = BuiltinMoeBackends();
  for (const SglangBackendName& foreign : ForeignRunnerNames())
    EXPECT_NE(backends.runners.FindIf(std::string(foreign.nearest)), nullptr) << foreign.name;
  for (const SglangBackendName& foreign : ForeignA2aNames()) {
    const std::string nearest(foreign.nearest);
    EXPECT_TRUE(backends.dispatchers.FindIf(nearest) || backends.fused.FindIf(nearest)) << nearest;
  }
}

TEST(RunnerNamesTest, EveryRunnerOfSglangIsUnderstoodOrRefused) {
  const MoeBackends backends = BuiltinMoeBackends();
  for (const SglangBackendName& foreign : ForeignRunnerNames()) {
    const std::string name(foreign.name);
    if (foreign.needs.empty()) {
      EXPECT_EQ(ResolveRunner(name, backends), foreign.nearest);
    } else {
      EXPECT_THAT(ErrorOf([&] { ResolveRunner(name, backends); }),
                  AllOf(HasSubstr("--moe-runner-backend " + name + " needs "),
                        HasSubstr("the nearest supported one is")));
    }
  }
}

TEST(RunnerNamesTest, A2aNamesOfOtherHardwareAreRefusedWithTheNearest) {
  const MoeBackends backends = BuiltinMoeBackends();
  const auto error = [&](const char* name) {
    return ErrorOf([&] { CheckA2aName(name, backends); });
  };
  EXPECT_EQ(error("deepep"), "no error");
  EXPECT_EQ(error("none"), "no error");
  EXPECT_THAT(error("mori"),
              AllOf(HasSubstr("needs AMD GPUs"), HasSubstr("nearest supported one is deepep")));
  EXPECT_THAT(error("ascend_fuseep"),
              AllOf(HasSubstr("needs Ascend NPUs"), HasSubstr("nearest supported one is fused")));
  EXPECT_THAT(error("train"), AllOf(HasSubstr("--moe-a2a-backend train: no such backend"),
                                    HasSubstr("deepep"), HasSubstr("none")));
}

TEST(RunnerNamesTest, RegisteredNamesComeFirst) {
  MoeBackends backends = BuiltinMoeBackends();
  EXPECT_EQ(ResolveRunner("auto", backends), "grouped_mlp");
  EXPECT_EQ(ResolveRunner("masked_mlp", backends), "masked_mlp");
  backends.runners.Add("triton", backends.runners.Find("masked_mlp"));
  EXPECT_EQ(ResolveRunner("triton", backends), "triton");
  backends.dispatchers.Add("mori", backends.dispatchers.Find("none"));
  CheckA2aName("mori", backends);
  EXPECT_THAT(ErrorOf([&] { ResolveRunner("train", backends); }),
              HasSubstr("want one of: auto, grouped_mlp, masked_mlp, triton"));
}

}  // namespace
}  // namespace switchyard
