#include <gmock/gmock.h>

#include <fstream>
#include <utility>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "engine/config.h"
#include "engine/host_memory.h"
#include "engine/kv_cache/state_slots.h"
#include "engine/machine.h"
#include "engine/memory_plan.h"
#include "kernels/ops.h"
#include "model/options.h"
#include "model/state_storage.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

EngineConfig Fixture() {
  EngineConfig config;
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures/qwen3_moe";
  config.max_total_tokens = 1000;
  config.device = "cpu";
  return config;
}

std::string ErrorOf(const EngineConfig& config, ErrorKind kind = ErrorKind::kInvalid) {
  try {
    MakePlan(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "";
}

TEST(Plan, FillsInWhatFollows) {
  EngineConfig config = Fixture();
  config.mesh = {.tp = 2, .ep = 2};
  const EnginePlan plan = MakePlan(config);
  EXPECT_EQ(plan.context_length, plan.model.max_position);
  EXPECT_EQ(plan.dtype, plan.model.dtype);
  EXPECT_EQ(plan.num_pages, 63);  // 1000 tokens, rounded up to pages of 16
  EXPECT_EQ(plan.max_running_requests, 63);
  EXPECT_EQ(plan.chunked_prefill_size, 2048);
  EXPECT_GE(plan.max_batch_tokens, plan.chunked_prefill_size + plan.max_running_requests);
  EXPECT_GE(plan.threads_per_rank, 1);
  EXPECT_EQ(plan.kv_bytes_per_rank,
            KvStorage::BytesPerToken(plan.model, Mesh(config.mesh, 0), plan.kv_dtype) * 63 * 16);
  EXPECT_GT(plan.weight_bytes_per_rank, 0u);
}

// Panels are copies of each rank. Ranks that take over others' experts map the files instead.
TEST(Plan, FourBitCheckpointsArePackedUnlessRanksTakeOver) {
  EngineConfig config = Fixture();
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures/gpt_oss";
  if (!ReadModelConfig(config).quantization.int8_group_rows) GTEST_SKIP() << "no int8 products";
  const auto copies = [&] {
    EnginePlan plan;
    plan.model = ReadModelConfig(config);
    return CopiesWeights(config, plan);
  };
  EXPECT_TRUE(copies());
  config.spare_ranks = 1;
  EXPECT_FALSE(copies());
  config.quantization.layout = "panels";
  EXPECT_TRUE(copies());
  config.spare_ranks = 0;
  config.quantization.layout = "stored";
  EXPECT_FALSE(copies());
  config.quantization.layout = "auto";
  config.elastic_ep_backend = "mooncake";
  EXPECT_FALSE(copies());
}

TEST(Plan, RanksWithExpertsOnlyHoldNothingTwice) {
  EngineConfig config = Fixture();
  config.load_format = "dummy";  // each rank has its own copy
  config.moe.a2a_backend = "deepep";
  const EnginePlan one = MakePlan(config);
  config.mesh = {.tp = 3, .ep = 3, .dp = 3, .dense_tp = 1, .expert_ranks = 2};
  config.mesh.expert_slots = {2, 5, 9};
  const EnginePlan plan = MakePlan(config);
  EXPECT_EQ(plan.max_running_requests, one.max_running_requests);
  EXPECT_EQ(plan.num_pages, one.num_pages);
  EXPECT_EQ(plan.chunked_prefill_size, one.chunked_prefill_size);
  const RankMemory memory = PlanRankMemory(config, plan);
  EXPECT_NEAR(WeightsOfRanks(config, plan, memory, 3),
              PlanRankMemory(Fixture(), one).weights.total(), 1.0);
}

TEST(Plan, CodesTakeAQuarterOfTheCacheAndAScaleForEachHead) {
  EngineConfig config = Fixture();
  const EnginePlan whole = MakePlan(config);
  const Mesh mesh(config.mesh, 0);
  const size_t all = KvStorage::BytesPerToken(whole.model, mesh, DType::kF32);
  config.kv_cache_dtype = "fp8_e4m3";
  EXPECT_EQ(KvStorage::BytesPerToken(whole.model, mesh, MakePlan(config).kv_dtype), all / 4);
  config.kv_cache_dtype = "int8";
  const AttentionConfig& a = whole.model.attention;
  EXPECT_EQ(KvStorage::BytesPerToken(whole.model, mesh, MakePlan(config).kv_dtype),
            all / 4 + whole.model.num_layers() * 2 * a.kv_heads * sizeof(float));
}

TEST(Plan, TheCacheHasTheRowsOfEachLayer) {
  EngineConfig config = Fixture();
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "families/mimo_v2_flash";
  config.kv_cache_dtype = "bfloat16";
  // Keys have 24 elements and values 16. The first layer has 2 KV heads, the other three have 4.
  constexpr size_t kBytes = 63 * 16 * (24 + 16) * 2;
  EXPECT_EQ(MakePlan(config).kv_bytes_per_rank, kBytes * (2 + 3 * 4));
  config.mesh.pp = 2;
  config.pp_layer_partition = "1,3";
  EXPECT_EQ(MakePlan(config).kv_bytes_per_rank, kBytes * 3 * 4);  // of the largest stage
  config.pp_layer_partition = "3,1";
  EXPECT_EQ(MakePlan(config).kv_bytes_per_rank, kBytes * (2 + 2 * 4));
}

TEST(Plan, CachesOfOtherTypesAreNamed) {
  EngineConfig config = Fixture();
  config.kv_cache_dtype = "fp8_e5m2";
  EXPECT_THAT(ErrorOf(config), HasSubstr("--kv-cache-dtype fp8_e5m2: want auto, float32"));
}

TEST(Plan, ADefaultCacheIsNoLargerThanItsUse) {
  EngineConfig config = Fixture();
  config.max_total_tokens = 0;
  config.max_running_requests = 3;
  config.context_length = 100;
  EXPECT_EQ(MakePlan(config).num_pages, 3 * 7);
}

TEST(Plan, WithoutChunkingAPassHoldsAWholePrompt) {
  EngineConfig config = Fixture();
  config.chunked_prefill_size = -1;
  config.context_length = 123;
  EXPECT_GE(MakePlan(config).max_batch_tokens, 123 + 63);
}

TEST(Plan, AttentionGroupsShareRequestsAndChunksAndHaveCachesOfTheirOwn) {
  EngineConfig config = Fixture();
  config.max_running_requests = 10;
  config.chunked_prefill_size = 100;
  config.mesh = {.tp = 2, .ep = 2};
  const EnginePlan one = MakePlan(config);
  config.mesh.dp = 2;
  const EnginePlan two = MakePlan(config);
  EXPECT_EQ(two.max_running_requests, 5);
  EXPECT_EQ(two.chunked_prefill_size, 50);
  EXPECT_EQ(two.max_batch_tokens, 55);
  EXPECT_EQ(two.num_pages, one.num_pages);
  EXPECT_EQ(two.kv_bytes_per_rank, 2 * one.kv_bytes_per_rank);  // both heads instead of one
  EXPECT_GT(two.weight_bytes_per_rank, one.weight_bytes_per_rank);
}

TEST(Plan, AGpusStepTakesAsManyPromptTokensAsItsMemoryIsLargeFor) {
  const auto bytes_of = [](int32_t chunk) { return chunk * 1000.0; };
  EXPECT_EQ(DefaultGpuChunk(8'192'000, bytes_of), 8192);
  EXPECT_EQ(DefaultGpuChunk(8'192'000 - 1, bytes_of), 4096);
  EXPECT_EQ(DefaultGpuChunk(4'096'000 - 1, bytes_of), 2048);
  EXPECT_EQ(DefaultGpuChunk(-1, bytes_of), 2048);  // weights alone exceed the memory
}

TEST(Plan, RedundantExpertsAreCounted) {
  EngineConfig config = Fixture();
  const size_t plain = MakePlan(config).weight_bytes_per_rank;
  config.moe.num_redundant_experts = 4;
  EXPECT_GT(MakePlan(config).weight_bytes_per_rank, plain);
}

TEST(Plan, FlagsThatDoNotFitAreNamed) {
  const auto with = [](auto change) {
    EngineConfig config = Fixture();
    change(config);
    return ErrorOf(config);
  };
  EXPECT_THAT(with([](auto& c) { c.dtype = "int8"; }), HasSubstr("--dtype int8"));
  EXPECT_THAT(with([](auto& c) { c.page_size = 0; }), HasSubstr("--page-size 0"));
  EXPECT_THAT(with([](auto& c) { c.chunked_prefill_size = -2; }),
              HasSubstr("--chunked-prefill-size -2"));
  EXPECT_THAT(with([](auto& c) { c.context_length = 1 << 30; }), HasSubstr("--context-length"));
  EXPECT_THAT(with([](auto& c) { c.mem_fraction_static = 1.5; }),
              HasSubstr("--mem-fraction-static"));
  EXPECT_THAT(with([](auto& c) { c.max_running_requests = -1; }),
              HasSubstr("--max-running-requests"));
  EXPECT_THAT(with([](auto& c) { c.mesh = {.tp = 4, .ep = 3}; }), HasSubstr("--ep"));
  EXPECT_THAT(with([](auto& c) { c.mesh = {.tp = 4, .ep = 4, .dp = 3}; }), HasSubstr("--dp-size"));
  EXPECT_THAT(with([](auto& c) { c.load_balance_method = "best"; }),
              HasSubstr("--load-balance-method best"));
  EXPECT_THAT(with([](auto& c) { c.max_total_tokens = int64_t{1} << 60; }),
              HasSubstr("--max-total-tokens"));
  EXPECT_THAT(with([](auto& c) { c.recorder.mode = "all"; }),
              HasSubstr("--expert-distribution-recorder-mode all"));
  EXPECT_THAT(with([](auto& c) { c.recorder.buffer_size = 0; }),
              HasSubstr("--expert-distribution-recorder-buffer-size 0"));
}

TEST(Plan, ProductsOfBFloat16MakeRowsAndCacheInItTheDefault) {
  EngineConfig config = Fixture();
  config.dtype = "bfloat16";
  config.cpu_isa = "avx2";
  EXPECT_FALSE(ReadModelConfig(config).quantization.bfloat16_rows);
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kF32);
  config.cpu_isa = "amx-emulated";
  try {
    EXPECT_TRUE(ReadModelConfig(config).quantization.bfloat16_rows);
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kBF16);
  config.quantization.method = "w8a8_int8";  // defines its rows
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kF32);
  for (const char* fp8 : {"fp8", "w8a8_fp8"}) {  // their rows are bfloat16 on some CPUs
    config.quantization.method = fp8;
    const bool rounds = kernels::HasFp8Products(kernels::IsaOf(config.cpu_isa));
    EXPECT_EQ(ReadModelConfig(config).quantization.fp8_bfloat16_rows, rounds);
    EXPECT_EQ(MakePlan(config).kv_dtype, rounds ? DType::kBF16 : DType::kF32) << fp8;
  }
  config.quantization.method = "int4";  // its rows are int8
  EXPECT_TRUE(ReadModelConfig(config).quantization.int8_group_rows);
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kBF16);
  config.quantization.rules = R"({"rules": [{"targets": ["lm_head"], "method": "w8a8_int8"}]})";
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kBF16);
  config.quantization.rules = R"({"rules": [{"targets": ["self_attn"], "method": "int8"}]})";
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kF32);
  config.quantization.rules = "";
  config.quantization.method = "";
  config.kv_cache_dtype = "float32";
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kF32);
  config.kv_cache_dtype = "auto";
  config.quantization.activations = "never";
  EXPECT_FALSE(ReadModelConfig(config).quantization.bfloat16_rows);
  config.quantization.activations = "auto";
  config.dtype = "float32";
  EXPECT_FALSE(ReadModelConfig(config).quantization.bfloat16_rows);
  EXPECT_EQ(MakePlan(config).kv_dtype, DType::kF32);
}

// Qwen's recipe for long contexts: yarn, factor 4, and a --context-length beyond
// max_position_embeddings.
TEST(Plan, RopeScalingStretchesTheLongestContext) {
  EngineConfig config = Fixture();
  const int64_t plain = MakePlan(config).context_length;
  config.model_override_args =
      R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": )" +
      std::to_string(plain) + "}}";
  EXPECT_EQ(MakePlan(config).context_length, plain);
  config.context_length = 4 * plain;
  EXPECT_EQ(MakePlan(config).context_length, 4 * plain);
  ++config.context_length;
  EXPECT_THAT(ErrorOf(config), HasSubstr("the rope scaling's factor times"));
  config.model_override_args.clear();
  config.context_length = plain + 1;
  EXPECT_THAT(ErrorOf(config), HasSubstr("the model's max_position_embeddings"));
}

TEST(Plan, MaxPrefillTokensBoundAStep) {
  EngineConfig config = Fixture();
  config.max_running_requests = 10;
  const int64_t rows = MakePlan(config).max_batch_tokens;
  config.max_prefill_tokens = 1000;
  EXPECT_EQ(MakePlan(config).max_batch_tokens, rows - 1048);
  config.chunked_prefill_size = -1;  // a pass must hold at least one whole prompt
  config.context_length = 123;
  EXPECT_EQ(MakePlan(config).max_batch_tokens, 1000 + 10);
  config.max_prefill_tokens = 100;
  EXPECT_EQ(MakePlan(config).max_batch_tokens, 123 + 10);
}

TEST(Plan, Mxfp4RunnerNeedsMxfp4Experts) {
  EngineConfig config = Fixture();
  config.moe.runner_backend = "flashinfer_mxfp4";
  EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("--moe-runner-backend flashinfer_mxfp4"),
                                     HasSubstr("--quantization mxfp4")));
}

TEST(ReplaceForeignA2a, OperatorsOfOtherDevicesHaveABackendHere) {
  for (const char* name : {"ascend_fuseep", "megamoe"}) {
    EngineConfig config = Fixture();
    config.moe.a2a_backend = config.moe.runner_backend = name;
    EngineConfig cuda = config;
    cuda.device = "cuda";
    ReplaceForeignA2a(&config);
    EXPECT_EQ(config.moe.a2a_backend, "fused");
    EXPECT_EQ(config.moe.runner_backend, "auto");
    ReplaceForeignA2a(&cuda);
    EXPECT_EQ(cuda.moe.a2a_backend, "deepep");
  }
  EngineConfig config = Fixture();
  config.moe.a2a_backend = "mooncake";
  ReplaceForeignA2a(&config);
  EXPECT_EQ(config.moe.a2a_backend, "mooncake");
}

TEST(Plan, ADenseModelHasNoExpertsToRecord) {
  EngineConfig config = Fixture();
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures/llama";
  EXPECT_EQ(ErrorOf(config), "");
  config.recorder.metrics = true;
  EXPECT_THAT(ErrorOf(config), HasSubstr("--enable-expert-distribution-metrics"));
  config.recorder.mode = "stat";
  EXPECT_THAT(ErrorOf(config), HasSubstr("--expert-distribution-recorder-mode: this model has no"));
}

TEST(Plan, ExpertsMoveWhereThereAreSomeAndSomewhereToGo) {
  EngineConfig config = Fixture();
  config.eplb.enable = true;
  config.mesh = {.tp = 2, .ep = 2};
  EXPECT_EQ(ErrorOf(config), "");
  EngineConfig other = config;
  other.mesh = {.tp = 2, .ep = 1};
  EXPECT_THAT(ErrorOf(other), HasSubstr("want --ep-size 2 or more"));
  other = config;
  other.eplb.min_utilization = 2;
  EXPECT_THAT(ErrorOf(other), HasSubstr("--eplb-min-rebalancing-utilization-threshold 2"));
  other = config;
  other.moe.num_redundant_experts = 1000;  // a rank would hold an expert twice
  EXPECT_THAT(ErrorOf(other), HasSubstr("it would hold an expert twice"));
  other = config;
  other.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures/llama";
  EXPECT_NE(ErrorOf(other), "");
  other.mesh = {};
  other.eplb.enable = false;
  other.eplb.dispatch = "balanced";
  EXPECT_THAT(ErrorOf(other), HasSubstr("--ep-dispatch-algorithm: this model has no experts"));
}

TEST(Plan, TooLittleMemoryIsAnErrorBeforeLoading) {
  EngineConfig config = Fixture();
  config.mem_fraction_static = 1e-9;
  EXPECT_THAT(ErrorOf(config, ErrorKind::kResource),
              AllOf(HasSubstr("needed"), HasSubstr("available"), HasSubstr("GiB"),
                    HasSubstr("--max-total-tokens")));
  config.max_total_tokens = 0;
  EXPECT_THAT(ErrorOf(config, ErrorKind::kResource), HasSubstr("--mem-fraction-static"));
}

// A model with recurrent states. With `wide`, a state has about 50 MiB.
EngineConfig WithStates(bool wide) {
  EngineConfig config = Fixture();
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "families/qwen3_next";
  if (wide)
    config.model_override_args = R"({"linear_key_head_dim": 256, "linear_value_head_dim": 4096})";
  return config;
}

TEST(Plan, ALimitOfRequestsGivesTheNumberOfStates) {
  EngineConfig config = WithStates(false);
  for (const auto& [running, states] : {std::pair(5, 3 * 5 + 8), {20, 4 * 20}}) {
    config.max_running_requests = running;
    EXPECT_EQ(MakePlan(config).num_states, states);
  }
  config.disable_radix_cache = true;  // there are no checkpoints
  EXPECT_EQ(MakePlan(config).num_states, 2 * 20);
  config.model_path = Fixture().model_path;
  EXPECT_EQ(MakePlan(config).num_states, 0);
}

TEST(Plan, StatesOfADefaultPlanFitIntoAQuarterOfTheMemory) {
  constexpr int64_t kMemory = int64_t{16} << 30;
  EngineConfig config = WithStates(true);
  for (const auto& [reuse, cuda] : {std::pair(true, false), {false, false}, {true, true}}) {
    const Machine machine{
        .cuda = cuda, .memory = {.total = kMemory, .available = kMemory}, .cpus = 2};
    config.disable_radix_cache = !reuse;
    const EnginePlan plan = MakePlanOn(machine, ReadModelConfig(config), config, 1);
    const int64_t states = plan.num_states;
    EXPECT_EQ(states, StateSlots::TotalFor(plan.max_running_requests, reuse));
    const auto slot = static_cast<double>(StateStorage::BytesPerSlot(plan.model, Mesh()));
    const double quarter = 0.85 * static_cast<double>(kMemory) / 4;
    EXPECT_LT(static_cast<double>(states) * slot, quarter);
    EXPECT_GT(static_cast<double>(states) * slot, quarter / 2);
  }
}

TEST(Plan, DraftsHaveStatesOfTheirOwn) {
  EngineConfig config = WithStates(true);
  config.max_running_requests = 5;
  config.speculative = {.algorithm = "NGRAM", .num_draft_tokens = 4};
  const Machine machine{.memory = {.total = int64_t{16} << 30, .available = int64_t{16} << 30},
                        .cpus = 2};
  EXPECT_EQ(MakePlanOn(machine, ReadModelConfig(config), config, 1).num_states,
            StateSlots::TotalFor(5, true, 3));
}

TEST(Plan, StatesThatDoNotFitAreNamed) {
  constexpr int64_t kMemory = int64_t{16} << 30;
  const Machine machine{.memory = {.total = kMemory, .available = kMemory}, .cpus = 2};
  EngineConfig config = WithStates(true);
  config.max_running_requests = 1000;
  for (const int64_t tokens : {1000, 0}) {
    config.max_total_tokens = tokens;
    try {
      MakePlanOn(machine, ReadModelConfig(config), config, 1);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kResource);
      EXPECT_THAT(error.what(), HasSubstr("recurrent states "));
      EXPECT_THAT(error.hint(), HasSubstr("lower --max-running-requests"));
    }
  }
}

TEST(Plan, RefusesGgufModelsOnGpus) {
  EngineConfig config = Fixture();
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "gguf/olmoe_q8_0.gguf";
  const ModelConfig model = ReadModelConfig(config);
  EXPECT_EQ(MakePlan(config).dtype, DType::kBF16);
  config.device = "cuda";
  const Machine gpu{.cuda = true, .memory = {.total = int64_t{80} << 30}, .cpus = 4};
  try {
    MakePlanOn(gpu, model, config, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("olmoe_q8_0.gguf is a GGUF model, which runs on CPUs"));
  }
}

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  800 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  const TemporaryDirectory temporary_;
  const fs::path& root_ = temporary_.path();
};

TEST_F(HostMemoryTest, IsTheHostsWithoutLimits) {
  EXPECT_EQ(ReadHostMemory(root_).total, 1000 * 1024);
  EXPECT_EQ(ReadHostMemory(root_).available, 800 * 1024);
  Write("proc/self/cgroup", "0::/a\n");
  Write("sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(ReadHostMemory(root_).total, 1000 * 1024);
}

TEST_F(HostMemoryTest, TakesTheTightestOfVersion2) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/memory.max", "500000\n");
  Write("sys/fs/cgroup/a/memory.current", "300000\n");
  Write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n");
  Write("sys/fs/cgroup/a/b/memory.max", "600000\n");
  EXPECT_EQ(ReadHostMemory(root_).total, 500000);
  EXPECT_EQ(ReadHostMemory(root_).available, 300000);
}

TEST_F(HostMemoryTest, ReadsVersion1AndAContainersRoot) {
  Write("proc/self/cgroup", "5:cpu:/x\n4:cpuset,memory:/docker/1\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "400000\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "150000\n");
  EXPECT_EQ(ReadHostMemory(root_).total, 400000);
  EXPECT_EQ(ReadHostMemory(root_).available, 250000);
}

// A GPU has the layers of one stage, and a buffer of hidden rows for each pass in flight.
TEST(Plan, GpusHaveTheMemoryOfTheirStage) {
  EngineConfig config = Fixture();
  config.device = "cuda";
  config.max_total_tokens = 0;
  config.context_length = 512;
  const auto plan_with = [&](int64_t bytes) {
    const Machine gpu{.cuda = true, .memory = {.total = bytes, .available = bytes}, .cpus = 4};
    return MakePlanOn(gpu, ReadModelConfig(config), config, config.mesh.world());
  };
  const EnginePlan whole = plan_with(int64_t{80} << 30);
  config.mesh.pp = 2;
  const EnginePlan staged = plan_with(int64_t{80} << 30);
  EXPECT_LT(staged.weight_bytes_per_rank, whole.weight_bytes_per_rank);
  EXPECT_EQ(staged.num_pages, whole.num_pages);
  EXPECT_LT(staged.kv_bytes_per_rank, whole.kv_bytes_per_rank);

  const auto exchange_of = [&](int stage) {
    return PlanRankMemory(config, StagePlanOf(config, staged, stage)).exchange;
  };
  const double of_two = exchange_of(0), of_last = exchange_of(1);
  const auto rows =
      static_cast<double>(staged.max_batch_tokens * staged.model.hidden) * sizeof(float);
  EXPECT_GE(of_two, 2 * rows);
  EXPECT_GE(of_last, 2 * rows);
  config.pp_async_batch_depth = 1;
  EXPECT_DOUBLE_EQ(exchange_of(0), of_two + rows);

  // The ranks of both stages share one GPU in tests.
  config.gpu_id_step = 0;
  const ModelOptions second = MakeModelOptions(config, staged, 1);
  EXPECT_EQ(second.gpu->index, 0);
  EXPECT_EQ(second.gpu->stage_passes, 3);
  EXPECT_EQ(second.gpu->ranks_per_host, 1);
}

}  // namespace
}  // namespace switchyard
