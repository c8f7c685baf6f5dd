// Putting a path together: memory, names, pairs.
#include "moe/runtime.h"

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

TEST(MoeRuntimeTest, SymmetricBytesAreWhatIsAllocated) {
  for (const std::string mode : {"normal", "low_latency", "auto"}) {
    for (const MeshShape& mesh : {MeshShape{1, 1}, {2, 2}, {4, 2}}) {
      for (const std::string backend : {"none", "deepep"}) {
        const MoeOptions options = {
            .a2a_backend = backend, .deepep_mode = mode, .row_dtype = DType::kBF16};
        RunMoeRanks(options, kShape, mesh, [&](RankComm& comm, ThreadPool& pool) {
          const size_t before = comm.memory->bytes_used();
          const auto runtime = MakeMoeRuntime(options, kShape, comm, pool);
          EXPECT_EQ(comm.memory->bytes_used() - before, MoeSymmetricBytes(options, kShape, mesh));
        });
      }
    }
  }
}

std::string ErrorOf(const MoeOptions& options, const MoeBackends& backends) {
  std::string message = "no error";
  RunMoeRanks({}, kShape, {1, 1}, [&](RankComm& comm, ThreadPool& pool) {
    try {
      MoeRuntime(options, kShape, comm, pool, backends);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      message = error.what();
    }
  });
  return message;
}

TEST(MoeRuntimeTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  const MoeBackends backends = BuiltinMoeBackends();
  EXPECT_THAT(ErrorOf({.a2a_backend = "mori"}, backends),
              AllOf(HasSubstr("--moe-a2a-backend mori"), HasSubstr("deepep, none")));
  EXPECT_THAT(ErrorOf({.runner_backend = "marlin"}, backends),
              AllOf(HasSubstr("--moe-runner-backend marlin"), HasSubstr("auto, grouped_mlp")));
  EXPECT_THAT(ErrorOf({.a2a_backend = "deepep", .deepep_mode = "fast"}, backends),
              HasSubstr("--deepep-mode fast: want normal, low_latency or auto"));
  EXPECT_THAT(ErrorOf({.max_dispatch_tokens_per_rank = 0}, backends),
              HasSubstr("--num-max-dispatch-tokens-per-rank 0"));
  EXPECT_THAT(ErrorOf({.row_dtype = DType::kI8}, backends), HasSubstr("--dtype int8"));
}

TEST(MoeRuntimeTest, ExpertsSitInRunsOfNearlyEqualLength) {
  const auto lengths = [](int experts, int ep) {
    std::vector<int> counts;
    int next = 0;
    for (int rank = 0; rank < ep; ++rank) {
      const ExpertRange range = ExpertsOfRank(experts, ep, rank);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      counts.push_back(range.end - range.begin);
    }
    EXPECT_EQ(next, experts);
    return counts;
  };
  EXPECT_THAT(lengths(64, 4), ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(lengths(10, 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(lengths(2, 4), ElementsAre(1, 1, 0, 0));
}

class MaskedRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kMasked; }
  bool Takes(WeightFormat) const override { return true; }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

TEST(MoeRuntimeTest, PairsThatNothingJoinsAreRefusedWithThoseThatWork) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("masked", [] { return std::make_unique<MaskedRunner>(); });
  EXPECT_THAT(ErrorOf({.runner_backend = "masked"}, backends),
              AllOf(HasSubstr("layout standard"), HasSubstr("layout masked"),
                    HasSubstr("standard → contiguous")));
}

class Float32Runner : public MaskedRunner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Takes(WeightFormat format) const override { return format == WeightFormat::kF32; }
};

TEST(MoeRuntimeTest, WeightsThatTheRunnerDoesNotTakeAreRefused) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("float32", [] { return std::make_unique<Float32Runner>(); });
  const TestLayer layer({.format = WeightFormat::kFp8Block});
  const MoeOptions options = {.runner_backend = "float32"};
  RunMoeRanks(options, layer.Shape(4), {1, 1}, [&](RankComm& comm, ThreadPool& pool) {
    const auto runtime =
        std::make_shared<MoeRuntime>(options, layer.Shape(4), comm, pool, backends);
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
