// The text of `switchyard backends`.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class PickyRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Supports(WeightFormat format) const override {
    return format == WeightFormat::kMxfp4 || format == WeightFormat::kF16;
  }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

// Two dispatchers and two runners; one pair has no permute.
MoeBackends SmallBackends() {
  const MoeBackends builtin = BuiltinMoeBackends();
  MoeBackends b;
  for (const char* name : {"none", "deepep"})
    b.dispatchers.Add(name, builtin.dispatchers.Find(name));
  b.runners.Add("grouped_mlp", builtin.runners.Find("grouped_mlp"));
  b.runners.Add("picky", {[] { return std::make_unique<PickyRunner>(); }, "takes little"});
  for (const DispatchLayout from :
       {DispatchLayout::kStandard, DispatchLayout::kNormal, DispatchLayout::kLowLatency})
    b.permutes.Add(from, RunnerLayout::kContiguous,
                   *builtin.permutes.Find(from, RunnerLayout::kContiguous));
  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kMasked, GroupRowsMasked());
  return b;
}

TEST(BackendTableTest, ListsPairs) {
  const std::string text = BackendTable({}, SmallBackends());
  EXPECT_THAT(text, HasSubstr(std::string(kernels::Name(kernels::ActiveIsa()))));
  EXPECT_THAT(text, ContainsRegex("delivers normal, low-latency\n +combines by "
                                  "--moe-combine-rows slot .* or rank\n"));
  EXPECT_THAT(text, HasSubstr("layout masked; takes float16, mxfp4\n"));
  EXPECT_THAT(
      text, ContainsRegex("deepep \\+ grouped_mlp +normal → contiguous, low-latency → contiguous"));
  EXPECT_THAT(text, ContainsRegex("deepep \\+ picky +no permute"));
  EXPECT_THAT(text, ContainsRegex("none \\+ picky +standard → masked"));
  EXPECT_THAT(text, HasSubstr("(auto is grouped_mlp)"));
  EXPECT_THAT(text, HasSubstr("--moe-runner-backend flashinfer_cutedsl: mapped to masked_mlp"));
  EXPECT_THAT(
      text,
      HasSubstr("--moe-a2a-backend mori: needs AMD GPUs; the nearest supported one is deepep"));
}

TEST(BackendTableTest, LayoutsFollowTheMode) {
  EXPECT_THAT(BackendTable({.deepep_mode = "normal"}, SmallBackends()),
              AllOf(HasSubstr("delivers normal\n"), Not(HasSubstr("low-latency"))));
}

TEST(BackendTableTest, NamesEveryBackendOfThisBuild) {
  const MoeBackends backends = BuiltinMoeBackends();
  const std::string text = BackendTable({}, backends);
  for (const auto& [name, backend] : backends.dispatchers.all()) {
    EXPECT_FALSE(backend.summary.empty()) << name;
    for (const auto& entry : backends.runners.all())
      EXPECT_THAT(text, HasSubstr("\n  " + name + " + " + entry.first + " "));
  }
  for (const auto& [name, backend] : backends.fused.all()) {
    EXPECT_FALSE(backend.summary.empty()) << name;
    EXPECT_THAT(text, ContainsRegex("\n  " + name + " +one operator\n"));
  }
}

TEST(BackendTableTest, ListsTheBackendsOfGpus) {
  MoeBackends backends = SmallBackends();
  backends.gpus.runners.Add("mine", {.summary = "a program's own"});
  const std::string text = BackendTable({}, backends);
  EXPECT_THAT(text,
              HasSubstr("\nOn GPUs (permutes )\n  --moe-runner-backend mine: a program's own\n"));
  EXPECT_THAT(BackendTable({}, BuiltinMoeBackends()),
              AllOf(HasSubstr("On GPUs (permutes standard → contiguous, "),
                    HasSubstr("\n  --moe-a2a-backend deepep: "),
                    HasSubstr("\n  --moe-runner-backend masked_mlp: ")));
}

TEST(ExplainChoiceTest, NamesTheChoiceAndItsReason) {
  const MoeBackends backends = SmallBackends();
  const auto explain = [&](const char* a2a, const char* runner, WeightFormat format) {
    return ExplainChoice({.a2a_backend = a2a, .runner_backend = runner},
                         {WeightFormat::kF16, format}, backends);
  };
  EXPECT_EQ(explain("deepep", "auto", WeightFormat::kFp8Block),
            "--moe-runner-backend auto is grouped_mlp: reads float16, " +
                std::string(Name(WeightFormat::kFp8Block)) +
                " experts in their stored format; paired with --moe-a2a-backend deepep by "
                "normal → contiguous, low-latency → contiguous\n");
  EXPECT_THAT(explain("none", "triton", WeightFormat::kF16),
              HasSubstr("--moe-runner-backend triton is grouped_mlp: reads"));
  EXPECT_THAT(explain("none", "picky", WeightFormat::kMxfp4),
              HasSubstr("--moe-runner-backend picky: reads float16, mxfp4 experts"));
  EXPECT_THAT(explain("none", "picky", WeightFormat::kBF16),
              HasSubstr("picky: does not support bfloat16\n"));
  EXPECT_THAT(explain("deepep", "picky", WeightFormat::kMxfp4),
              HasSubstr("picky: no permute pairs it with --moe-a2a-backend deepep\n"));
}

}  // namespace
}  // namespace switchyard
