// Construction of the CPU backend: memory, names of runners and formats of weights.
#include "moe/cpu/cpu_backend.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
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

class Float32Runner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Supports(WeightFormat format) const override { return format == WeightFormat::kF32; }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

// Also for experts that arrive later, of another checkpoint.
TEST(CpuMoeBackendTest, WeightsThatTheRunnerDoesNotTakeAreRefused) {
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("float32", {[] { return std::make_unique<Float32Runner>(); }, ""});
  const TestLayer layer({.format = WeightFormat::kFp8Block});
  const MoeOptions options = {.runner_backend = "float32"};
  RunMoeRanks({}, layer.Shape(4), {}, [&](RankComm& comm, ThreadPool& pool) {
    const auto runtime =
        MakeCpuMoe(options, layer.Shape(4), comm, pool, std::make_shared<MoeBackends>(backends));
    try {
      const MoeLayer refused(layer.config, layer.whole, runtime);
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
