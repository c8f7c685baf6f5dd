// Flags of MoE layers on CPUs that are refused before a backend is constructed.
#include "moe/check_options.h"

#include <vector>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kAccepted[] = "no error";  // of ErrorOf
const MoeShape kShape = {
    .hidden = 96, .intermediate = 64, .num_experts = 10, .top_k = 3, .max_tokens = 37};

std::string ErrorOfValue(const MoeOptions& options) {
  return ErrorOf([&] { CheckMoeValues(options, kShape, {}); });
}

std::string ErrorOfNames(const MoeOptions& options,
                         const MoeBackends& backends = BuiltinMoeBackends()) {
  return ErrorOf([&] { CheckMoeBackends(options, backends); });
}

std::string ErrorOfPair(const MoeOptions& options, const MoeBackends& backends,
                        const std::vector<WeightFormat>& formats = {WeightFormat::kF32}) {
  return ErrorOf([&] { CheckMoePair(options, formats, backends); });
}

TEST(CheckMoeValuesTest, ValuesOutOfRangeAreRefusedByTheirFlags) {
  EXPECT_EQ(ErrorOfValue({}), kAccepted);
  EXPECT_THAT(ErrorOfValue({.a2a_backend = "deepep", .deepep_mode = "fast"}),
              HasSubstr("--deepep-mode fast: want normal, low_latency or auto"));
  EXPECT_THAT(ErrorOfValue({.max_dispatch_tokens_per_rank = 0}),
              HasSubstr("--num-max-dispatch-tokens-per-rank 0"));
  EXPECT_THAT(ErrorOfValue({.dispatcher_output_dtype = "int4"}),
              HasSubstr("--deepep-dispatcher-output-dtype int4"));
  EXPECT_THAT(ErrorOfValue({.long_seq_per_round_tokens = 0}),
              HasSubstr("--deepep-normal-long-seq-per-round-tokens 0"));
  EXPECT_THAT(ErrorOfValue({.long_seq_rounds = -1}),
              HasSubstr("--deepep-normal-long-seq-round -1"));
  EXPECT_THAT(ErrorOfValue({.combine_rows = "token"}),
              HasSubstr("--moe-combine-rows token: want slot or rank"));
  EXPECT_THAT(ErrorOfValue({.num_redundant_experts = -1}),
              HasSubstr("--ep-num-redundant-experts -1"));
  EXPECT_THAT(ErrorOfValue({.row_dtype = DType::kI8}), HasSubstr("--dtype int8"));
}

TEST(CheckMoeValuesTest, WaterfillNeedsAnExchangeAndWholeSharedExperts) {
  MoeShape shared = kShape;
  shared.has_shared = true;
  const auto error = [](const char* a2a, const MoeShape& shape, const MeshShape& mesh) {
    return ErrorOf([&] { CheckMoeValues({.a2a_backend = a2a, .waterfill = true}, shape, mesh); });
  };
  EXPECT_EQ(error("deepep", shared, {.tp = 2, .ep = 2}), kAccepted);
  EXPECT_EQ(error("deepep", kShape, {.tp = 2, .ep = 1}), kAccepted);  // there is no shared expert
  EXPECT_THAT(error("deepep", shared, {.tp = 2, .ep = 1}), HasSubstr("want --ep 2"));
  EXPECT_THAT(error("none", shared, {.tp = 2, .ep = 2}), HasSubstr("sends no rows; want deepep"));
}

TEST(CheckMoeBackendsTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(ErrorOfNames({}), kAccepted);
  EXPECT_THAT(ErrorOfNames({.a2a_backend = "train"}),
              AllOf(HasSubstr("--moe-a2a-backend train"), HasSubstr("deepep")));
  EXPECT_THAT(ErrorOfNames({.runner_backend = "train"}),
              AllOf(HasSubstr("--moe-runner-backend train"), HasSubstr("auto, grouped_mlp")));
  EXPECT_THAT(ErrorOfNames({.speculative_a2a_backend = "warp"}), HasSubstr("warp"));
  EXPECT_THAT(ErrorOfNames({.speculative_runner_backend = "warp"}), HasSubstr("warp"));
}

class NothingFused : public FusedExperts {
 public:
  bool Supports(WeightFormat format) const override { return format == WeightFormat::kF32; }
  int64_t MaxTokens(bool) const override { return 1; }
  void Begin(const float*, const TopK&, bool, DispatchHandle*) override {}
  void End(const ExpertBlock&, DispatchHandle*, float*) override {}
};

MoeBackends WithFused() {
  MoeBackends backends = BuiltinMoeBackends();
  backends.fused.Add("both",
                     {[](const DispatcherContext&) { return std::make_unique<NothingFused>(); },
                      [](const MoeOptions&, const ExchangeShape&) { return size_t{0}; }, ""});
  return backends;
}

TEST(CheckMoeBackendsTest, AFusedOperatorRefusesARunner) {
  const MoeBackends backends = WithFused();
  EXPECT_THAT(ErrorOfNames({.a2a_backend = "both", .runner_backend = "grouped_mlp"}, backends),
              AllOf(HasSubstr("--moe-a2a-backend both computes the experts itself"),
                    HasSubstr("--moe-runner-backend grouped_mlp")));
  EXPECT_EQ(ErrorOfNames({.a2a_backend = "both", .runner_backend = "both"}, backends), kAccepted);
  EXPECT_EQ(ErrorOfNames({.a2a_backend = "both"}, backends), kAccepted);
}

TEST(CheckMoeBackendsTest, CombineByRankIsRefusedWithoutPartialSums) {
  for (const std::string a2a : {"none", "flashinfer", "fused"})
    EXPECT_THAT(ErrorOfNames({.a2a_backend = a2a, .combine_rows = "rank"}),
                AllOf(HasSubstr("--moe-combine-rows rank: --moe-a2a-backend " + a2a),
                      HasSubstr("want deepep, mooncake")));
  for (const std::string a2a : {"deepep", "mooncake"})
    EXPECT_EQ(ErrorOfNames({.a2a_backend = a2a, .combine_rows = "rank"}), kAccepted);
}

class MaskedRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Supports(WeightFormat format) const override { return format == WeightFormat::kF32; }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

TEST(CheckMoePairTest, BuiltInBackendsFitTogether) {
  const MoeBackends backends = BuiltinMoeBackends();
  for (const auto& a2a : backends.dispatchers.all())
    for (const auto& runner : backends.runners.all())
      EXPECT_EQ(ErrorOfPair({.a2a_backend = a2a.first, .runner_backend = runner.first}, backends,
                            {WeightFormat::kBF16, WeightFormat::kMxfp4}),
                kAccepted)
          << a2a.first << " " << runner.first;
  EXPECT_EQ(ErrorOfPair({.a2a_backend = "fused"}, backends), kAccepted);
}

TEST(CheckMoePairTest, PairsThatNothingJoinsAreRefusedWithThoseThatWork) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("masked", {[] { return std::make_unique<MaskedRunner>(); }, ""});
  EXPECT_EQ(ErrorOfPair({.runner_backend = "masked"}, backends), kAccepted);
  backends.permutes = PermuteTable();
  backends.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kContiguous, SortRowsByExpert());
  EXPECT_EQ(ErrorOfPair({}, backends), kAccepted);
  EXPECT_THAT(ErrorOfPair({.runner_backend = "masked"}, backends),
              AllOf(HasSubstr("--moe-runner-backend masked"), HasSubstr("layout standard"),
                    HasSubstr("layout masked"), HasSubstr("standard → contiguous")));
}

TEST(CheckMoePairTest, FormatsThatNothingComputesAreRefused) {
  MoeBackends backends = WithFused();
  backends.runners.Add("masked", {[] { return std::make_unique<MaskedRunner>(); }, ""});
  EXPECT_THAT(ErrorOfPair({.runner_backend = "masked"}, backends, {WeightFormat::kBF16}),
              HasSubstr("--moe-runner-backend masked does not support bfloat16 experts"));
  EXPECT_EQ(ErrorOfPair({.a2a_backend = "both"}, backends), kAccepted);
  EXPECT_THAT(ErrorOfPair({.a2a_backend = "both"}, backends, {WeightFormat::kBF16}),
              HasSubstr("--moe-a2a-backend both does not support bfloat16 experts"));
}

}  // namespace
}  // namespace switchyard
