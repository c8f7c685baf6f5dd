// Plans with experts on CPUs beside one GPU (--device cuda,cpu), for a described machine.
#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "core/cpus.h"
#include "core/error.h"
#include "engine/config.h"
#include "engine/cpu_binding.h"
#include "engine/gpu_memory.h"
#include "engine/machine.h"
#include "engine/memory_plan.h"
#include "kernels/ops.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// deepseek_v3 of the fixtures, with 16 experts.
EngineConfig OnGpuAndCpu(std::vector<int32_t> slots) {
  EngineConfig config;
  config.model_path = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures/deepseek_v3";
  config.device = "cuda,cpu";
  config.moe.a2a_backend = "deepep";
  config.max_total_tokens = 1000;
  const auto ranks = static_cast<int>(slots.size());
  config.mesh = {.tp = ranks,
                 .ep = ranks,
                 .dp = ranks,
                 .dense_tp = 1,
                 .expert_ranks = ranks - 1,
                 .expert_slots = std::move(slots)};
  return config;
}

EnginePlan PlanOf(const EngineConfig& config, int64_t gpu = 80 * kGiB, int64_t host = 64 * kGiB) {
  const Machine machine{.cuda = true,
                        .hopper = true,
                        .memory = {.total = gpu, .available = gpu},
                        .cpus = 16,
                        .host = {.total = host, .available = host}};
  return MakePlanOn(machine, ReadModelConfig(config), config, config.mesh.tp);
}

TEST(HostExpertsTest, RanksHaveTheDeviceOfTheirRole) {
  const EngineConfig config = OnGpuAndCpu({4, 12});
  const EnginePlan plan = PlanOf(config);
  EXPECT_TRUE(plan.cuda && plan.host_experts);
  const ModelOptions gpu = MakeModelOptions(config, plan, 0),
                     cpu = MakeModelOptions(config, plan, 1);
  EXPECT_TRUE(gpu.gpu.has_value());
  EXPECT_FALSE(cpu.gpu.has_value());
  for (const ModelOptions* options : {&gpu, &cpu}) {
    EXPECT_TRUE(options->moe.host_experts);
    EXPECT_EQ(options->moe.deepep_mode, "normal");
    EXPECT_TRUE(options->moe.combine_long_seq);
    EXPECT_EQ(options->max_tokens, plan.max_batch_tokens);
    EXPECT_EQ(options->dtype, plan.dtype);
  }
  EXPECT_EQ(plan.threads_per_rank, 15);  // one CPU is left to the host thread of the GPU
  EXPECT_EQ(PlanOf(OnGpuAndCpu({4, 5, 7})).threads_per_rank, 7);
}

TEST(HostExpertsTest, RanksOnCpusLeaveACpuToTheGpu) {
  const EngineConfig config = OnGpuAndCpu({4, 5, 7});
  const EnginePlan plan = PlanOf(config);
  std::vector<CpuBinding> bindings(3);
  RunRankThreads(3, RankComm::BytesPerRank(config.mesh),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm = RankComm::Create(std::move(arena), config.mesh, rank);
                   bindings[rank] = BindRank(config, plan, *comm->tp);
                   comm->tp->Barrier("bound");
                 });
  EXPECT_TRUE(bindings[0].cpus.empty());
  const CpuList allowed = AllowedCpus();
  for (int rank = 1; rank < 3; ++rank)
    for (const int cpu : bindings[rank].cpus) {
      EXPECT_THAT(allowed, Contains(cpu));
      EXPECT_TRUE(allowed.size() == 1 || cpu != allowed.front());
    }
}

// The GPU has its experts and everything else; the rest is in the memory of the host.
TEST(HostExpertsTest, TheGpuHoldsItsOwnExpertsOnly) {
  const auto weights = [](std::vector<int32_t> slots) {
    const EngineConfig config = OnGpuAndCpu(std::move(slots));
    return PlanRankMemory(config, PlanOf(config)).weights;
  };
  const WeightBytes few = weights({2, 14}), many = weights({14, 2}), copies = weights({2, 5, 9});
  EXPECT_NEAR(few.experts * 7, many.experts, 0.01 * many.experts);
  EXPECT_EQ(few.experts, copies.experts);
  EXPECT_EQ(few.attention, many.attention);
}

TEST(HostExpertsTest, TheArenaHasTheBuffersOfRows) {
  const EngineConfig config = OnGpuAndCpu({4, 12});
  const EnginePlan plan = PlanOf(config);
  EXPECT_EQ(plan.symmetric_bytes_per_rank,
            SymmetricBytesPerRank(plan.model, MakeModelOptions(config, plan, 1), config.mesh));
  EXPECT_GT(plan.symmetric_bytes_per_rank, RankComm::BytesPerRank(config.mesh));
}

// Packed experts on CPUs multiply int8 rows, as without a GPU, if the flags allow it.
TEST(HostExpertsTest, RanksOnCpusRoundRowsOfPackedWeights) {
  EngineConfig config = OnGpuAndCpu({4, 12});
  config.quantization.method = "int4";
  const bool can = kernels::HasFourBitProducts(kernels::IsaOf(config.cpu_isa));
  const EnginePlan plan = PlanOf(config);
  EXPECT_FALSE(plan.ModelOf(config.mesh, 0).quantization.int8_group_rows);
  EXPECT_EQ(plan.ModelOf(config.mesh, 1).quantization.int8_group_rows, can);
  config.quantization.activations = "never";
  EXPECT_FALSE(PlanOf(config).ModelOf(config.mesh, 1).quantization.int8_group_rows);
}

TEST(HostExpertsTest, RowsOfFloat16ModelsAreBfloat16) {
  EngineConfig config = OnGpuAndCpu({4, 12});
  config.dtype = "float16";
  EXPECT_EQ(PlanOf(config).dtype, DType::kBF16);
  config.dtype = "float32";
  EXPECT_EQ(PlanOf(config).dtype, DType::kF32);
}

TEST(HostExpertsTest, TooLittleMemoryOfEitherSideIsNamed) {
  const EngineConfig config = OnGpuAndCpu({4, 12});
  const auto error = [&](int64_t gpu, int64_t host) {
    try {
      PlanOf(config, gpu, host);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kResource);
      return std::string(e.what()) + "; " + e.hint();
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(80 * kGiB, 64 * kGiB), "no error");
  EXPECT_THAT(
      error(80 * kGiB, 1 << 20),
      AllOf(HasSubstr("not enough memory of the host for experts"), HasSubstr("--expert-slots")));
  EXPECT_THAT(error(1 << 20, 64 * kGiB), HasSubstr("not enough memory: needed"));
}

TEST(HostExpertsTest, StreamsNeedACopyOfAllExpertsOnTheHost) {
  EngineConfig config = OnGpuAndCpu({4, 12});
  EXPECT_EQ(MakeModelOptions(config, PlanOf(config), 0).moe.stream_tokens, 0);
  EXPECT_EQ(PlanHostExperts(config, PlanOf(config)).streams, 0);
  const double without = PlanRankMemory(config, PlanOf(config)).fixed();
  for (const char* flag : {"100", "auto"}) {
    config.moe.stream_experts = flag;
    const EnginePlan plan = PlanOf(config);
    const int64_t tokens = MakeModelOptions(config, plan, 0).moe.stream_tokens;
    EXPECT_EQ(MakeModelOptions(config, plan, 1).moe.stream_tokens, tokens);
    if (std::string(flag) == "auto") {
      EXPECT_GT(tokens, 0);
    } else {
      EXPECT_EQ(tokens, 100);
    }
    const RankMemory gpu = PlanRankMemory(config, plan);
    EXPECT_GT(gpu.fixed(), without);  // two buffers
    const HostExpertBytes host = PlanHostExperts(config, plan);
    EXPECT_NEAR(host.streams, gpu.weights.experts / 4 * 16, 1);
    EXPECT_EQ(host.total(), host.weights + host.rows + host.arena + host.streams);
  }
}

TEST(HostExpertsTest, AutoStreamsConsiderWhichExpertsAreOnTheGpu) {
  EngineConfig config = OnGpuAndCpu({8, 8});
  config.moe.stream_experts = "auto";
  const auto tokens = [&] { return MakeModelOptions(config, PlanOf(config), 0).moe.stream_tokens; };
  const int64_t uniform = tokens();
  EXPECT_GT(uniform, 0);
  config.mesh.expert_slots = {4, 12};
  EXPECT_NEAR(tokens(), uniform, 1);  // the number of experts cancels out
  config.eplb.enable = true;          // the GPU then has the hottest experts
  EXPECT_GT(tokens(), uniform);
  // A round that is too short for the uploads never streams.
  config.moe.long_seq_per_round_tokens = uniform;
  EXPECT_EQ(tokens(), 0);
}

TEST(HostExpertsTest, StreamsNeedARoundOfSoManyTokens) {
  EngineConfig config = OnGpuAndCpu({4, 12});
  config.moe.stream_experts = "100";
  config.moe.long_seq_per_round_tokens = 99;
  try {
    PlanOf(config);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--deepep-normal-long-seq-per-round-tokens"));
  }
}

TEST(HostExpertsTest, StreamsNeedAPassOfSoManyTokens) {
  EngineConfig config = OnGpuAndCpu({4, 12});
  config.moe.stream_experts = "1000000";
  try {
    PlanOf(config);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--stream-experts 1000000: a pass has at most"));
  }
}

TEST(HostExpertsTest, OneGpuSuffices) {
  const std::vector<GpuInfo> one = {{.name = "GPU", .total_bytes = kGiB, .free_bytes = kGiB}};
  EXPECT_TRUE(ChooseGpus(OnGpuAndCpu({4, 12}), 2, one));
  try {
    ChooseGpus(OnGpuAndCpu({4, 12}), 2, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--device cuda,cpu: no GPU was found"));
  }
}

}  // namespace
}  // namespace switchyard
