// The plan refuses exactly the features that do not work according to the feature table.
#include "engine/checks/features.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "engine/gpu_memory.h"
#include "engine/machine.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// Two EP ranks on CPUs.
EngineConfig TwoRanks(const char* model = "qwen3_moe") {
  EngineConfig config;
  config.model_path = fs::path(SWITCHYARD_TEST_DATA) / "fixtures" / model;
  config.max_total_tokens = 1000;
  config.device = "cpu";
  config.mesh = {.tp = 2, .ep = 2};
  return config;
}

template <typename Function>
std::string ErrorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << error.what();
    return error.what();
  }
  return "";
}

std::string TextOf(const Feature& f) { return fmt::format("{} {}", f.flag, f.value); }

std::string RefusalOf(const Feature& f, const EngineConfig& config, const char* where) {
  const std::string value = f.number ? f.number(config) : f.value;
  return fmt::format("{}{}{}: supported on {} only", f.flag, value.empty() ? "" : " ", value,
                     where);
}

// Calls visit(feature, configuration that requests it).
template <typename Visit>
void ForEachRequest(const Visit& visit) {
  int count = 0;
  for (const Feature& feature : EngineFeatures()) {
    if (!feature.request) continue;
    EngineConfig config = TwoRanks();
    feature.request(config);
    SCOPED_TRACE(TextOf(feature));
    visit(feature, config);
    ++count;
  }
  EXPECT_GT(count, 40);
}

TEST(FeaturesTest, CpusOfOneHostSupportEach) {
  ForEachRequest([](const Feature& feature, const EngineConfig& config) {
    EXPECT_TRUE(feature.requested(config, ReadModelConfig(config)));
    EXPECT_EQ(ErrorOf([&] { MakePlan(config); }), "");
  });
}

TEST(FeaturesTest, EachFamilyRunsOnCpusAndGpus) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SWITCHYARD_TEST_DATA) / "families")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path());
    ++count;
    const ModelConfig model = LoadModelConfig(entry.path());
    for (const bool gpus : {false, true})
      EXPECT_EQ(ErrorOf([&] { CheckFeatures({}, model, {.gpus = gpus}); }), "");
  }
  EXPECT_GT(count, 20);
}

TEST(FeaturesTest, HostsRefuseByName) {
  ForEachRequest([](const Feature& feature, const EngineConfig& config) {
    const std::string error = ErrorOf([&] { MakePlan(config, /*ranks_of_host=*/1); });
    if (feature.reach.hosts) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_THAT(error, HasSubstr(RefusalOf(feature, config, "one host")));
    }
  });
}

// Ranks of one host that a launcher has started.
TEST(FeaturesTest, RanksWithoutSharedMemoryRefuseByName) {
  int refused = 0;
  ForEachRequest([&](const Feature& feature, const EngineConfig& config) {
    const std::string error =
        ErrorOf([&] { MakePlanHere(config, config.mesh.world(), /*shared_memory=*/false); });
    if (feature.reach.hosts) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_THAT(error, HasSubstr(RefusalOf(feature, config, "ranks that share memory")));
      ++refused;
    }
  });
  // mooncake, two values of --disaggregation-mode, and ranks with unequal roles or slots
  EXPECT_EQ(refused, 5);
}

// GPUs of a host map each other's memory, also if a launcher starts the ranks.
TEST(FeaturesTest, GpusNeedNoSharedMemory) {
  EngineConfig config = TwoRanks();
  config.moe.a2a_backend = "mooncake";
  const ModelConfig model = ReadModelConfig(config);
  const auto error = [&](RankPlaces places) {
    return ErrorOf([&] { CheckFeatures(config, model, places); });
  };
  EXPECT_EQ(error({.gpus = true, .shared_memory = false}), "");
  EXPECT_THAT(error({.gpus = false, .shared_memory = false}), HasSubstr("share memory"));
  EXPECT_THAT(error({.gpus = true, .several_hosts = true}), HasSubstr("one host"));
}

TEST(FeaturesTest, GpusRefuseByName) {
  ForEachRequest([](const Feature& feature, EngineConfig config) {
    const std::string error =
        ErrorOf([&] { CheckFeatures(config, ReadModelConfig(config), {.gpus = true}); });
    if (feature.reach.gpus) {
      EXPECT_EQ(error, "");
      return;
    }
    EXPECT_THAT(error, HasSubstr(RefusalOf(feature, config, "CPUs")));
    if (FindGpus().empty()) return;
    config.device = "cuda";
    config.gpu_id_step = 0;
    EXPECT_EQ(ErrorOf([&] { MakePlan(config); }), error);
  });
}

TEST(FeaturesTest, RanksNeedAGpuEach) {
  const std::vector<GpuInfo> one = {{.name = "GPU", .total_bytes = 1 << 30, .free_bytes = 1 << 30}};
  ForEachRequest([&](const Feature& feature, EngineConfig config) {
    if (feature.reach.one_gpu) return;
    config.device = "cuda";
    EXPECT_THAT(ErrorOf([&] { ChooseGpus(config, config.mesh.tp, one); }),
                HasSubstr("lower --tp-size"));
  });
}

TEST(FeaturesTest, ErrorsListTheValuesThatWork) {
  EngineConfig config = TwoRanks();
  config.moe.a2a_backend = "mooncake";
  EXPECT_THAT(ErrorOf([&] { MakePlan(config, 1); }),
              HasSubstr("--moe-a2a-backend mooncake: supported on one host only; want one host, or "
                        "--moe-a2a-backend deepep | flashinfer | none | fused"));
  config = TwoRanks();
  config.kv_cache_dtype = "int8";
  EXPECT_THAT(ErrorOf([&] { CheckFeatures(config, ReadModelConfig(config), {.gpus = true}); }),
              HasSubstr("--kv-cache-dtype int8: supported on CPUs only; want --device cpu, or "
                        "--kv-cache-dtype auto | float32 | bfloat16 | float16 | fp8_e4m3"));
}

TEST(FeaturesTest, ErrorsNameTheNumberThatIsRequested) {
  EngineConfig config = TwoRanks();
  config.mesh.pp = 3;
  EXPECT_EQ(ErrorOf([&] { CheckFeatures(config, {}, {.gpus = true}); }), "");
  EXPECT_THAT(
      ErrorOf([&] { CheckFeatures(config, {}, {.gpus = true, .several_hosts = true}); }),
      HasSubstr("--pp-size 3: supported on GPUs of one host and on CPUs only; want one host, "
                "or --device cpu"));
}

TEST(FeaturesTest, FlagsOfExpertsDoNotMatterToDenseModels) {
  EngineConfig config = TwoRanks("llama");
  config.mesh.ep = 1;
  config.moe.a2a_backend = "mooncake";
  EXPECT_EQ(ErrorOf([&] { MakePlan(config, 1); }), "");
}

TEST(FeaturesTest, BackendsOfAProgramAreOnCpus) {
  EngineConfig config = TwoRanks();
  MoeBackends backends = BuiltinMoeBackends();
  backends.runners.Add("mine", {backends.runners.Find("grouped_mlp").make, "as grouped_mlp"});
  config.backends = std::make_shared<MoeBackends>(backends);
  config.moe.runner_backend = "mine";
  EXPECT_EQ(ErrorOf([&] { MakePlan(config); }), "");
  EXPECT_THAT(ErrorOf([&] { CheckFeatures(config, ReadModelConfig(config), {.gpus = true}); }),
              HasSubstr("--moe-runner-backend mine: supported on CPUs only"));
  EXPECT_THAT(FeatureTable(EngineFeatures(&backends)),
              HasSubstr("| `--moe-runner-backend` `mine` | yes | yes | no | no | no |\n"));
}

TEST(FeaturesTest, BackendsOfAProgramMayBeOnGpusOnly) {
  EngineConfig config = TwoRanks();
  MoeBackends backends = BuiltinMoeBackends();
  backends.gpus.runners.Add("mine", backends.gpus.runners.Find("grouped_mlp"));
  backends.gpus.exchanges.Add("mine", backends.gpus.exchanges.Find("deepep"));
  config.backends = std::make_shared<MoeBackends>(backends);
  config.moe.runner_backend = "mine";
  EXPECT_EQ(ErrorOf([&] { CheckFeatures(config, ReadModelConfig(config), {.gpus = true}); }), "");
  EXPECT_THAT(ErrorOf([&] { MakePlan(config); }),
              HasSubstr("--moe-runner-backend mine: supported on GPUs only; want --device cuda, or "
                        "--moe-runner-backend grouped_mlp | masked_mlp"));
  const std::string table = FeatureTable(EngineFeatures(&backends));
  EXPECT_THAT(table,
              AllOf(HasSubstr("| `--moe-runner-backend` `mine` | no | no | yes | yes | yes |\n"),
                    HasSubstr("| `--moe-a2a-backend` `mine` | no | no | yes | yes | yes |\n")));
}

TEST(FeatureTableTest, ValuesWithEqualCellsShareARow) {
  const std::string text = FeatureTable(
      {{.section = "A", .flag = "--x", .value = "1"},
       {.section = "A", .flag = "--x", .value = "2", .reach = {.gpus = false, .hosts = false}},
       {.section = "A", .flag = "--x", .value = "3"},
       {.section = "B", .flag = "--y", .reach = {.one_gpu = false}, .on_gpus = "up to 4"},
       {.section = "B", .flag = "words"}});
  EXPECT_THAT(text, HasSubstr("| **A** | | | | | |\n"
                              "| `--x` `1`, `3` | yes | yes | yes | yes | yes |\n"
                              "| `--x` `2` | yes | no | no | no | no |\n"
                              "| **B** | | | | | |\n"
                              "| `--y` | yes | yes | no | up to 4 | up to 4 |\n"
                              "| words | yes | yes | yes | yes | yes |\n"));
}

TEST(FeatureTableTest, HasTheFactsOfTheCode) {
  const std::string text = FeatureTable(EngineFeatures());
  EXPECT_THAT(text,
              AllOf(HasSubstr("`--moe-a2a-backend` `deepep`, `flashinfer`, `none`, `fused` | yes | "
                              "yes | yes"),
                    HasSubstr("`mooncake` | yes | no | yes | yes | no |"),
                    HasSubstr("`float16` | yes | yes | as bfloat16"),
                    HasSubstr("mxfp4, nvfp4 | yes | yes | as bfloat16; experts packed")));
}

}  // namespace
}  // namespace switchyard
