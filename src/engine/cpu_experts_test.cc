// Which models get experts on CPUs beside a GPU, and how many, for described machines. The choice
// is compared with MakePlanOn for the same machine.
#include "engine/cpu_experts.h"

#include <gmock/gmock.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/checks/checks.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

ModelConfig Published(const std::string& name, const nlohmann::json& changes = {}) {
  std::ifstream in(SWITCHYARD_TEST_DATA "/plan/" + name + ".json");
  nlohmann::json config = nlohmann::json::parse(in);
  if (changes.is_object()) config.update(changes);
  return ParseModelConfig(config.dump(), {}, {});
}

// 36 layers of 128 experts, and else as gpt-oss-20b.
ModelConfig GptOss120b() {
  nlohmann::json types;
  for (int layer = 0; layer < 36; ++layer)
    types.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  return Published("gpt_oss_20b",
                   {{"num_hidden_layers", 36}, {"num_local_experts", 128}, {"layer_types", types}});
}

// A small checkpoint with experts of several GiB.
ModelConfig Enlarged(const std::string& name) {
  return LoadModelConfig(
      SWITCHYARD_TEST_DATA "/" + name,
      R"({"num_experts": 64, "hidden_size": 1024, "moe_intermediate_size": 8192})", {});
}

Machine MachineOf(double gpu, double host, bool hopper = true) {
  const auto of = [](double gib) {
    const auto bytes = static_cast<int64_t>(gib * kGiB);
    return HostMemory{.total = bytes, .available = bytes};
  };
  return {.cuda = true, .hopper = hopper, .memory = of(gpu), .cpus = 16, .host = of(host)};
}

EngineConfig Config() {
  EngineConfig config;
  config.model_path = "model";
  config.context_length = 8192;
  return config;
}

// The message, with its hint; empty without an error.
std::string RefusalOf(const std::function<void()>& f, ErrorKind kind = ErrorKind::kResource) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "";
}

std::string PlanRefusal(const Machine& machine, const ModelConfig& model,
                        const EngineConfig& config) {
  return RefusalOf([&] { MakePlanOn(machine, model, config, config.mesh.world()); });
}

// The chosen layout is accepted by MakePlanOn, has the cache that was asked for, and the GPU cannot
// hold one more expert of each layer beside this cache.
void ExpectMostExperts(const Machine& machine, const ModelConfig& model, EngineConfig chosen,
                       int64_t cache) {
  const EnginePlan plan = MakePlanOn(machine, model, chosen, 2);
  EXPECT_TRUE(plan.cuda && plan.host_experts);
  EXPECT_GE(plan.num_pages * chosen.page_size, cache);
  chosen.max_total_tokens = cache;
  std::vector<int32_t>& slots = chosen.mesh.expert_slots;
  if (slots[1] == 1) return;  // a rank has at least one expert
  ++slots[0];
  --slots[1];
  EXPECT_THAT(PlanRefusal(machine, model, chosen), HasSubstr("not enough memory: needed"));
}

struct Case {
  const char* model;
  double gpu, host;  // GiB
  bool hopper;
  const char* refusal;  // a part of it; null: experts go to CPUs; "": all experts fit the GPU
  int least, most;      // experts of a layer on the GPU
};

TEST(CpuExpertsTest, ModelsAreDividedByTheMemoryOfBothSides) {
  const ModelConfig gpt = GptOss120b(), deepseek = Published("deepseek_v3");
  constexpr const char* kHost = "The other experts do not fit the host: GPU: ";
  constexpr const char* kGpu = "With most experts on CPUs it does not fit either: GPU: 1 of 256";
  for (const Case& c : std::vector<Case>{
           {"gpt-oss-120b", 24, 64, true, nullptr, 16, 40},
           {"gpt-oss-120b", 24, 192, false, nullptr, 4, 16},  // GPU experts are bfloat16
           {"gpt-oss-120b", 48, 32, true, nullptr, 60, 90},
           {"gpt-oss-120b", 80, 64, true, "", 0, 0},
           {"gpt-oss-120b", 24, 32, true, kHost, 0, 0},
           {"deepseek-v3", 24, 768, true, kGpu, 0, 0},
           {"deepseek-v3", 80, 768, true, nullptr, 10, 30},
           {"deepseek-v3", 80, 192, true, kHost, 0, 0}}) {
    SCOPED_TRACE(fmt::format("{}, {} and {} GiB", c.model, c.gpu, c.host));
    const ModelConfig& model = c.model == std::string("deepseek-v3") ? deepseek : gpt;
    const Machine machine = MachineOf(c.gpu, c.host, c.hopper);
    CpuExpertsChoice choice;
    const std::string refusal =
        RefusalOf([&] { choice = ChooseCpuExperts(machine, model, Config()); });
    if (c.refusal != nullptr) {
      EXPECT_THAT(refusal, HasSubstr(c.refusal));
      EXPECT_EQ(refusal.empty(), c.refusal == std::string());
      if (!refusal.empty()) {
        EXPECT_THAT(refusal,
                    AllOf(StartsWith("the model does not fit the GPU: it needs "),
                          HasSubstr("lower --max-total-tokens"), HasSubstr("--mem-fraction-static"),
                          HasSubstr(fmt::format("of {:.2f} GiB", c.gpu))));
      }
      EXPECT_THAT(choice.lines, IsEmpty());
      EXPECT_TRUE(choice.config.mesh.expert_slots.empty());
      continue;
    }
    EXPECT_EQ(refusal, "");
    const EngineConfig& chosen = choice.config;
    ASSERT_EQ(chosen.mesh.expert_slots.size(), 2u);
    EXPECT_EQ(chosen.device, "cuda,cpu");
    EXPECT_EQ(chosen.mesh.world(), 2);
    EXPECT_TRUE(chosen.eplb.enable);
    const int on_gpu = chosen.mesh.expert_slots[0];
    EXPECT_EQ(on_gpu + chosen.mesh.expert_slots[1], model.moe->router.num_experts);
    EXPECT_GE(on_gpu, c.least);
    EXPECT_LE(on_gpu, c.most);
    ExpectMostExperts(machine, model, chosen, kCacheBesideCpuExperts);
  }
}

TEST(CpuExpertsTest, LinesSayWhatWasChosenAndWhy) {
  const CpuExpertsChoice choice = ChooseCpuExperts(MachineOf(48, 64), GptOss120b(), Config());
  const std::vector<int32_t>& slots = choice.config.mesh.expert_slots;
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_THAT(
      choice.lines,
      ElementsAre(
          AllOf(StartsWith("experts on CPUs: the model does not fit the GPU: it needs "),
                HasSubstr("(--mem-fraction-static 0.85 of 48.00 GiB, of which 48.00 GiB are free")),
          AllOf(StartsWith(fmt::format("GPU: {} of 128 experts of each layer ", slots[0])),
                HasSubstr("cache of 16384 tokens"), HasSubstr(" of 40.80 GiB")),
          AllOf(StartsWith(fmt::format("host: {} experts of each layer ", slots[1])),
                HasSubstr(" of 54.40 GiB")),
          HasSubstr(fmt::format("--device cuda,cpu --tp-size 2 --expert-ranks 1 --expert-slots "
                                "{},{} --eplb-rank-costs 1:40,20:900 --enable-eplb "
                                "--chunked-prefill-size 2048;",
                                slots[0], slots[1])),
          HasSubstr("--cpu-experts off")));
}

// Flags that are given stay as they are, and change what fits.
TEST(CpuExpertsTest, FlagsChangeWhatTheGpuHolds) {
  const ModelConfig model = GptOss120b();
  const Machine machine = MachineOf(48, 64);
  const auto on_gpu = [&](const std::function<void(EngineConfig&)>& change) {
    EngineConfig config = Config();
    change(config);
    const CpuExpertsChoice choice = ChooseCpuExperts(machine, model, config);
    const EngineConfig& chosen = choice.config;
    EXPECT_EQ(chosen.max_total_tokens, config.max_total_tokens);
    ExpectMostExperts(
        machine, model, chosen,
        config.max_total_tokens > 0 ? config.max_total_tokens : kCacheBesideCpuExperts);
    return chosen.mesh.expert_slots.empty() ? -1 : chosen.mesh.expert_slots[0];
  };
  const int usual = on_gpu([](EngineConfig&) {});
  EXPECT_LT(on_gpu([](EngineConfig& c) { c.max_total_tokens = 160000; }), usual);
  EXPECT_GT(on_gpu([](EngineConfig& c) { c.max_total_tokens = 1000; }), usual);
  EXPECT_LT(on_gpu([](EngineConfig& c) { c.mem_fraction_static = 0.7; }), usual);
  EXPECT_LE(on_gpu([](EngineConfig& c) { c.chunked_prefill_size = 8192; }), usual);
  EXPECT_EQ(on_gpu([](EngineConfig& c) {
              c.chunked_prefill_size = 2048;
              c.moe.a2a_backend = "deepep";
              c.eplb = {.enable = true, .rank_costs = "1:30,10:700"};
            }),
            usual);
  EngineConfig config = Config();
  config.chunked_prefill_size = 1024;
  config.eplb.rank_costs = "1:30,10:700";
  const ExpertSplit split = SplitExperts(machine, model, config, 1000);
  EXPECT_EQ(split.config.eplb.rank_costs, "1:30,10:700");
  EXPECT_EQ(split.config.chunked_prefill_size, 1024);
  EXPECT_EQ(FlagsOfSplit(config, split),
            fmt::format("--device cuda,cpu --tp-size 2 --expert-ranks 1 --expert-slots {},{} "
                        "--enable-eplb",
                        split.on_gpu, split.on_cpus));
}

// A short context or few requests need a smaller cache than the default.
TEST(CpuExpertsTest, TheCacheIsNoLargerThanRequestsCanUse) {
  EngineConfig config = Config();
  config.context_length = 1024;
  config.max_running_requests = 4;
  const ExpertSplit split = SplitExperts(MachineOf(48, 64), GptOss120b(), config, 16384);
  EXPECT_EQ(split.cache_tokens, 4096);
}

// The cache of states is sized by the number of requests, which MakePlan would derive from the room
// that is left.
TEST(CpuExpertsTest, RecurrentStatesHaveANumberOfRequests) {
  const ModelConfig model = Enlarged("families/qwen3_next");
  const Machine machine = MachineOf(8, 64);
  EngineConfig config = Config();
  config.context_length = 256;
  const CpuExpertsChoice choice = ChooseCpuExperts(machine, model, config);
  EXPECT_EQ(choice.config.max_running_requests, 32);
  ASSERT_EQ(choice.lines.size(), 5u);
  EXPECT_THAT(choice.lines[3], HasSubstr(" --max-running-requests 32;"));
  ExpectMostExperts(machine, model, choice.config, 32 * 256);
}

TEST(CpuExpertsTest, OtherConfigurationsStayAsTheyAre) {
  const ModelConfig model = GptOss120b();
  struct Unchanged {
    const char* what;
    std::function<void(EngineConfig&, Machine&)> change;
  };
  for (const Unchanged& c : std::vector<Unchanged>{
           {"fits", [](auto&, Machine&m) { m = MachineOf(80, 64); }},
           {"CPUs", [](auto&, Machine&m) { m.cuda = false; }},
           {"--device cuda", [](EngineConfig&e, auto&) { e.device = "cuda"; }},
           {"--device cpu", [](EngineConfig&e, auto&) { e.device = "cpu"; }},
           {"two GPUs", [](EngineConfig&e, auto&) { e.mesh = {.tp = 2}; }},
           {"two stages", [](EngineConfig&e, auto&) { e.mesh = {.pp = 2}; }},
           {"an unknown backend", [](EngineConfig&e, auto&) { e.moe.a2a_backend = "mailbox"; }}}) {
    EngineConfig config = Config();
    Machine machine = MachineOf(24, 64);
    c.change(config, machine);
    const CpuExpertsChoice choice = ChooseCpuExperts(machine, model, config);
    EXPECT_THAT(choice.lines, IsEmpty()) << c.what;
    EXPECT_EQ(EncodeConfig(choice.config), EncodeConfig(config)) << c.what;
  }
  // A model without experts that does not fit.
  const ModelConfig dense =
      LoadModelConfig(SWITCHYARD_TEST_DATA "/fixtures/qwen3",
                      R"({"hidden_size": 8192, "intermediate_size": 32768, "head_dim": 128})", {});
  EXPECT_THAT(ChooseCpuExperts(MachineOf(1, 64), dense, Config()).lines, IsEmpty());
}

// Only the flags are too large: the error of MakePlan names them.
TEST(CpuExpertsTest, FlagsThatAreTooLargeAreRefusedAsWithoutAChoice) {
  const ModelConfig model = GptOss120b();
  const Machine machine = MachineOf(80, 512);
  for (const auto& change : std::vector<std::function<void(EngineConfig&)>>{
           [](EngineConfig& c) { c.max_total_tokens = 1'000'000; },
           [](EngineConfig& c) { c.chunked_prefill_size = 1 << 20; }}) {
    EngineConfig config = Config();
    change(config);
    EXPECT_THAT(ChooseCpuExperts(machine, model, config).lines, IsEmpty());
    EXPECT_THAT(PlanRefusal(machine, model, config), HasSubstr("not enough memory"));
  }
}

// Other processes use the GPU now. A slow server would be a surprise, so MakePlan refuses.
TEST(CpuExpertsTest, AModelThatFitsAnEmptyGpuIsNotDivided) {
  const ModelConfig model = GptOss120b();
  Machine busy = MachineOf(80, 512);
  busy.memory.available = 24 * kGiB;
  const CpuExpertsChoice choice = ChooseCpuExperts(busy, model, Config());
  EXPECT_THAT(choice.lines, IsEmpty());
  EXPECT_EQ(EncodeConfig(choice.config), EncodeConfig(Config()));
  EXPECT_THAT(PlanRefusal(busy, model, choice.config),
              HasSubstr("of which 24.00 GiB are free now"));
}

TEST(CpuExpertsTest, AModelThatDoesNotFitIsDividedByTheFreeMemory) {
  const ModelConfig model = GptOss120b();
  const Machine idle = MachineOf(48, 64);
  Machine busy = idle;
  busy.memory.available = 44 * kGiB;
  const CpuExpertsChoice of_idle = ChooseCpuExperts(idle, model, Config());
  const CpuExpertsChoice of_busy = ChooseCpuExperts(busy, model, Config());
  ASSERT_EQ(of_busy.lines.size(), 5u);
  EXPECT_THAT(of_busy.lines[0],
              HasSubstr("an empty GPU has 40.80 GiB (--mem-fraction-static 0.85 of 48.00 GiB, of "
                        "which 44.00 GiB are free now)"));
  EXPECT_LT(of_busy.config.mesh.expert_slots.at(0), of_idle.config.mesh.expert_slots.at(0));
  ExpectMostExperts(busy, model, of_busy.config, kCacheBesideCpuExperts);
}

// A machine on whose GPU the whole model has `spare` bytes beside a cache of one page.
Machine RoomForAPage(const ModelConfig& model, int64_t spare, double host) {
  const EngineConfig config = Config();
  const ExpertSplit whole = SplitExperts(MachineOf(400, 64), model, config, config.page_size);
  EXPECT_EQ(whole.on_cpus, 0);
  return MachineOf(
      (whole.gpu_total() + static_cast<double>(spare)) / config.mem_fraction_static / kGiB, host);
}

TEST(CpuExpertsTest, ACacheOfOnePageIsEnoughWithoutFlags) {
  const ModelConfig model = GptOss120b();
  constexpr int64_t kSpare = int64_t{1} << 20;  // less than 2048 tokens need
  const Machine fits = RoomForAPage(model, kSpare, 64);
  EXPECT_THAT(ChooseCpuExperts(fits, model, Config()).lines, IsEmpty());
  const EnginePlan plan = MakePlanOn(fits, model, Config(), 1);
  EXPECT_GE(plan.num_pages, 1);
  EXPECT_LT(plan.num_pages * Config().page_size, 2048);

  const Machine lacks = RoomForAPage(model, -kSpare, 64);
  EXPECT_THAT(PlanRefusal(lacks, model, Config()), HasSubstr("not enough memory"));
  EXPECT_EQ(ChooseCpuExperts(lacks, model, Config()).lines.size(), 5u);
}

// With one page the model fits, but --max-total-tokens asks for more.
TEST(CpuExpertsTest, FlagsThatTheOtherLayoutCannotSatisfyAreRefusedAsWithoutAChoice) {
  const ModelConfig model = GptOss120b();
  constexpr int64_t kSpare = int64_t{1} << 20;
  EngineConfig config = Config();
  config.max_total_tokens = 4096;
  const Machine large_host = RoomForAPage(model, kSpare, 64);
  EXPECT_EQ(ChooseCpuExperts(large_host, model, config).lines.size(), 5u);
  const Machine small_host = RoomForAPage(model, kSpare, 0.1);
  EXPECT_THAT(ChooseCpuExperts(small_host, model, config).lines, IsEmpty());
  EXPECT_THAT(PlanRefusal(small_host, model, config), HasSubstr("lower --max-total-tokens"));
}

// MakePlan refuses, and its advice names the flags that were given.
TEST(CpuExpertsTest, FlagsThatTheOtherLayoutDoesNotSupportAreInTheAdvice) {
  const ModelConfig model = GptOss120b();
  const Machine machine = MachineOf(24, 64);
  struct Refused {
    std::function<void(EngineConfig&)> change;
    const char* flags;
  };
  for (const Refused& c :
       std::vector<Refused>{{[](EngineConfig& e) { e.two_batch_overlap = true; },
                             " without --enable-two-batch-overlap"},
                            {[](EngineConfig& e) { e.moe.a2a_backend = "flashinfer"; },
                             " without --moe-a2a-backend flashinfer"},
                            {[](EngineConfig& e) { e.moe.num_redundant_experts = 2; }, ""},
                            {[](EngineConfig& e) { e.eplb.algorithm = "deepseek"; }, ""}}) {
    EngineConfig config = Config();
    c.change(config);
    const CpuExpertsChoice choice = ChooseCpuExperts(machine, model, config);
    EXPECT_THAT(choice.lines, IsEmpty()) << c.flags;
    EXPECT_EQ(EncodeConfig(choice.config), EncodeConfig(config)) << c.flags;
    EXPECT_THAT(PlanRefusal(machine, model, config),
                AllOf(StartsWith("not enough memory: needed"), Not(HasSubstr("--expert-ranks")),
                      HasSubstr(fmt::format("put experts on CPUs (--device cuda,cpu{}), or take a "
                                            "smaller model",
                                            c.flags))));
  }
}

TEST(CpuExpertsTest, FlagsInTheAdviceAreRefusedWithExpertsOnCpus) {
  const ModelConfig model = GptOss120b();
  const Machine machine = MachineOf(24, 64);
  const EngineConfig chosen = ChooseCpuExperts(machine, model, Config()).config;
  EXPECT_THAT(FlagsAgainstHostExperts(chosen), IsEmpty());
  for (const auto& change : std::vector<std::function<void(EngineConfig&)>>{
           [](EngineConfig& c) { c.moe.a2a_backend = "flashinfer"; },
           [](EngineConfig& c) { c.moe.deepep_mode = "low_latency"; },
           [](EngineConfig& c) { c.moe.combine_rows = "rank"; },
           [](EngineConfig& c) { c.two_batch_overlap = true; },
           [](EngineConfig& c) { c.moe.single_batch_overlap = true; },
           [](EngineConfig& c) { c.spare_ranks = 1; },
           [](EngineConfig& c) { c.disaggregation_mode = "prefill"; },
           [](EngineConfig& c) { c.speculative.algorithm = "NEXTN"; },
           [](EngineConfig& c) { c.moe.waterfill = true; }}) {
    EngineConfig config = chosen;
    change(config);
    const std::vector<std::string> flags = FlagsAgainstHostExperts(config);
    ASSERT_EQ(flags.size(), 1u);
    EXPECT_NE(RefusalOf([&] { MakePlanOn(machine, model, config, 2); }, ErrorKind::kInvalid), "")
        << flags[0];
  }
}

TEST(CpuExpertsTest, TheAdviceSaysThatADraftModelNeedsMemory) {
  const ModelConfig model = Enlarged("fixtures/qwen3_moe");
  const Machine machine = MachineOf(1, 64);
  EngineConfig config = Config();
  config.context_length = 256;
  config.speculative = {.algorithm = "STANDALONE",
                        .draft_model_path = SWITCHYARD_TEST_DATA "/fixtures/qwen3"};
  EXPECT_THAT(ChooseCpuExperts(machine, model, config).lines, IsEmpty());
  EXPECT_THAT(PlanRefusal(machine, model, config),
              HasSubstr("put experts on CPUs (--device cuda,cpu without --speculative-algorithm "
                        "STANDALONE), leave out --speculative-algorithm STANDALONE (the weights of "
                        "the draft model are counted too), or take a smaller model"));
}

// Without the choice, the refusal names both remedies.
TEST(CpuExpertsTest, RefusalsOfMakePlanNameTheOtherDevice) {
  EngineConfig config = Config();
  config.device = "cuda";
  EXPECT_THAT(PlanRefusal(MachineOf(24, 64), GptOss120b(), config),
              HasSubstr("put experts on CPUs (--device cuda,cpu), or take a smaller model"));
  EngineConfig chosen = ChooseCpuExperts(MachineOf(24, 64), GptOss120b(), Config()).config;
  chosen.mesh.expert_slots = {100, 28};
  EXPECT_THAT(PlanRefusal(MachineOf(24, 64), GptOss120b(), chosen),
              AllOf(HasSubstr("give the GPU fewer experts (--expert-slots)"),
                    Not(HasSubstr("put experts on CPUs"))));
}

}  // namespace
}  // namespace switchyard
