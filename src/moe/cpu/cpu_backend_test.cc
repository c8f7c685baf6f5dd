// Construction of the CPU backend: memory, names of backends, and pairs of a dispatcher and a
// runner.
#include "moe/cpu/cpu_backend.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MoeShape kShape = {
    .hidden = 96, .intermediate = 64, .num_experts = 10, .top_k = 3, .max_tokens = 37};

TEST(CpuMoeBackendTest, SymmetricBytesAreWhatIsAllocated) {
  for (const A2aChoice& choice : AllA2aChoices()) {
    for (const MeshShape& mesh :
         {MeshShape{}, {.tp = 2, .ep = 2}, {.tp = 4, .ep = 2}, {.tp = 6, .ep = 2, .dp = 3}}) {
      const MoeOptions options = {
          .a2a_backend = choice.a2a, .deepep_mode = choice.mode, .row_dtype = DType::kBF16};
      RunMoeRanks(options, kShape, mesh, [&](RankComm& comm, ThreadPool& pool) {
        const size_t before = comm.memory->bytes_used();
        const auto runtime = MakeCpuMoe(options, kShape, comm, pool);
        EXPECT_EQ(comm.memory->bytes_used() - before, MoeSymmetricBytes(options, kShape, mesh))
            << choice.Describe();
      });
    }
  }
}

std::string ErrorOf(const MoeOptions& options, const MoeBackends& backends) {
  std::string message = "no error";
  RunMoeRanks({}, kShape, {1, 1}, [&](RankComm& comm, ThreadPool& pool) {
    try {
      CpuMoeBackend(options, kShape, comm, pool, std::make_shared<MoeBackends>(backends));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      message = error.what();
    }
  });
  return message;
}

TEST(CpuMoeBackendTest, WrongOptionsAreRefusedByTheirFlags) {
  const MoeBackends backends = BuiltinMoeBackends();
  EXPECT_THAT(ErrorOf({.a2a_backend = "train"}, backends),
              AllOf(HasSubstr("--moe-a2a-backend train"), HasSubstr("deepep")));
  EXPECT_THAT(ErrorOf({.runner_backend = "train"}, backends),
              AllOf(HasSubstr("--moe-runner-backend train"), HasSubstr("auto, grouped_mlp")));
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .deepep_mode = "fast"}, backends),
              HasSubstr("--deepep-mode fast: want normal, low_latency or auto"));
  EXPECT_THAT(ErrorOf({.speculative_a2a_backend = "warp"}, backends), HasSubstr("warp"));
  EXPECT_THAT(ErrorOf({.speculative_runner_backend = "warp"}, backends), HasSubstr("warp"));
  EXPECT_THAT(ErrorOf({.max_dispatch_tokens_per_rank = 0}, backends),
              HasSubstr("--num-max-dispatch-tokens-per-rank 0"));
  EXPECT_THAT(ErrorOf({.dispatcher_output_dtype = "int4"}, backends),
              HasSubstr("--deepep-dispatcher-output-dtype int4"));
  EXPECT_THAT(ErrorOf({.num_redundant_experts = -1}, backends),
              HasSubstr("--ep-num-redundant-experts -1"));
  EXPECT_THAT(ErrorOf({.row_dtype = DType::kI8}, backends), HasSubstr("--dtype int8"));
}

// Names must be checked already when the arena is sized, before ranks start.
TEST(CpuMoeBackendTest, NamesAreRefusedWhereMemoryIsPlanned) {
  EXPECT_THROW(MoeSymmetricBytes({.a2a_backend = "train"}, kShape, {}), Error);
  EXPECT_THROW(MoeSymmetricBytes({.runner_backend = "train"}, kShape, {}), Error);
}

TEST(CpuMoeBackendTest, SglangsRunnerNamesAreUnderstood) {
  RunMoeRanks({}, kShape, {}, [&](RankComm& comm, ThreadPool& pool) {
    const auto layout = [&](const char* runner) {
      return MakeCpuMoe({.runner_backend = runner}, kShape, comm, pool)->runner().layout();
    };
    EXPECT_EQ(layout("auto"), RunnerLayout::kContiguous);
    EXPECT_EQ(layout("triton"), RunnerLayout::kContiguous);
    EXPECT_EQ(layout("flashinfer_cutedsl"), RunnerLayout::kMasked);
  });
}

class NothingFused : public FusedExperts {
 public:
  bool Supports(WeightFormat) const override { return false; }
  int64_t MaxTokens(bool) const override { return 1; }
  void Begin(const float*, const TopK&, bool, DispatchHandle*) override {}
  void End(const ExpertBlock&, DispatchHandle*, float*) override {}
};

TEST(CpuMoeBackendTest, AFusedOperatorTakesNoRunnerBesideIt) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.fused.Add("both",
                     {[](const DispatcherContext&) { return std::make_unique<NothingFused>(); },
                      [](const MoeOptions&, const ExchangeShape&) { return size_t{0}; }, ""});
  EXPECT_THAT(ErrorOf({.a2a_backend = "both", .runner_backend = "grouped_mlp"}, backends),
              AllOf(HasSubstr("--moe-a2a-backend both computes the experts itself"),
                    HasSubstr("--moe-runner-backend grouped_mlp")));
  EXPECT_EQ(ErrorOf({.a2a_backend = "both", .runner_backend = "both"}, backends), "no error");
  EXPECT_EQ(ErrorOf({.a2a_backend = "both"}, backends), "no error");
}

TEST(CpuMoeBackendTest, CombineByRankIsRefusedWhereNobodyAddsUp) {
  const MoeBackends backends = BuiltinMoeBackends();
  for (const std::string a2a : {"none", "flashinfer", "fused"})
    EXPECT_THAT(ErrorOf({.a2a_backend = a2a, .combine_rows = "rank"}, backends),
                AllOf(HasSubstr("--moe-combine-rows rank: --moe-a2a-backend " + a2a),
                      HasSubstr("want deepep, mooncake")));
  for (const std::string a2a : {"deepep", "mooncake"})
    EXPECT_GT(MoeSymmetricBytes({.a2a_backend = a2a, .combine_rows = "rank"}, kShape, {}), 0u);
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .combine_rows = "token"}, backends),
              HasSubstr("--moe-combine-rows token: want slot or rank"));
}

class MaskedRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Supports(WeightFormat) const override { return true; }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

TEST(CpuMoeBackendTest, PairsThatNothingJoinsAreRefusedWithThoseThatWork) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("masked", {[] { return std::make_unique<MaskedRunner>(); }, ""});
  backends.permutes = PermuteTable();
  backends.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kContiguous, SortRowsByExpert());
  EXPECT_THAT(ErrorOf({.runner_backend = "masked"}, backends),
              AllOf(HasSubstr("layout standard"), HasSubstr("layout masked"),
                    HasSubstr("standard → contiguous")));
}

class Float32Runner : public MaskedRunner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Supports(WeightFormat format) const override { return format == WeightFormat::kF32; }
};

TEST(CpuMoeBackendTest, WeightsThatTheRunnerDoesNotTakeAreRefused) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("float32", {[] { return std::make_unique<Float32Runner>(); }, ""});
  const TestLayer layer({.format = WeightFormat::kFp8Block});
  const MoeOptions options = {.runner_backend = "float32"};
  RunMoeRanks({}, layer.Shape(4), {}, [&](RankComm& comm, ThreadPool& pool) {
    const auto runtime =
        MakeCpuMoe(options, layer.Shape(4), comm, pool, std::make_shared<MoeBackends>(backends));
    try {
      MoeLayer(layer.config, layer.whole, runtime);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("--moe-runner-backend float32"),
                                      HasSubstr(std::string(Name(WeightFormat::kFp8Block)))));
    }
  });
}

}  // namespace
}  // namespace switchyard
