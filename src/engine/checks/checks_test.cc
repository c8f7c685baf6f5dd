// Which sets of options an engine accepts: tables of one change each, beside the set that works.
#include "engine/checks/checks.h"

#include <gmock/gmock.h>

#include <functional>
#include <vector>

#include "core/testing.h"
#include "engine/checks/test_checks.h"
#include "engine/machine.h"
#include "moe/backends.h"

namespace switchyard {
namespace {

using testing::Case;
using testing::ExpectCases;
using testing::Fixture;
using testing::FourRanks;
using ::testing::HasSubstr;
using testing::kAccepted;
using testing::RefusalOf;

TEST(ChecksTest, Speculation) {
  ExpectCases({
      {[](auto& c) { c.speculative = {.algorithm = "NGRAM"}; }, ""},
      {[](auto& c) { c.speculative = {.algorithm = "ngram", .num_draft_tokens = 5}; }, ""},
      {[](auto& c) {
         c.speculative = {.algorithm = "NGRAM", .num_steps = "4", .num_draft_tokens = 5};
       },
       ""},
      {[](auto& c) {
         c.speculative = {.algorithm = "NGRAM", .num_steps = "3", .num_draft_tokens = 5};
       },
       "--speculative-num-draft-tokens 5: a chain of 3 drafts has 4 rows"},
      {[](auto& c) {
         c.speculative = {
             .algorithm = "NGRAM", .num_steps = "3", .eagle_topk = 4, .num_draft_tokens = 8};
       },
       "--speculative-eagle-topk 4: drafts of --speculative-algorithm NGRAM are chains; want 1"},
      {[](auto& c) { c.speculative = {.algorithm = "NGRAM", .eagle_topk = 4}; },
       "--speculative-eagle-topk 4: drafts of --speculative-algorithm NGRAM are chains; want 1"},
      {[](auto& c) { c.speculative = {.algorithm = "NEXTN", .eagle_topk = 4}; },
       "--speculative-eagle-topk 4: trees need numbers for --speculative-num-steps"},
      {[](auto& c) {
         c.speculative = {
             .algorithm = "NEXTN", .num_steps = "1", .eagle_topk = 2, .num_draft_tokens = 4};
       },
       "--speculative-num-draft-tokens 4: with --speculative-eagle-topk 2"},
      {[](auto& c) { c.speculative = {.algorithm = "NGRAM", .draft_quantization = "int4"}; },
       "--speculative-draft-model-quantization int4: --speculative-algorithm NGRAM has no draft"},
      {[](auto& c) { c.speculative = {.algorithm = "NGRAM", .token_map = "tokens.json"}; },
       "--speculative-token-map tokens.json: --speculative-algorithm NGRAM has no draft model"},
      {[](auto& c) { c.speculative = {.token_map = "tokens.json"}; },
       "--speculative-token-map: needs --speculative-algorithm"},
      {[](auto& c) { c.speculative = {.algorithm = "NGRAM", .draft_model_path = "small"}; },
       "--speculative-draft-model-path small: --speculative-algorithm NGRAM has no draft"},
      {[](auto& c) { c.speculative = {.algorithm = "EAGLE"}; },
       "--speculative-algorithm EAGLE: needs --speculative-draft-model-path"},
      {[](auto& c) { c.speculative = {.algorithm = "MEDUSA"}; }, "--speculative-algorithm MEDUSA"},
      {[](auto& c) { c.speculative = {.num_draft_tokens = 4}; },
       "--speculative-num-draft-tokens: needs --speculative-algorithm"},
      {[](auto& c) { c.moe.speculative_a2a_backend = "deepep"; },
       "--speculative-moe-a2a-backend deepep: needs a draft model"},
  });
}

TEST(ChecksTest, Disaggregation) {
  ExpectCases({
      {[](auto& c) { c.disaggregation_mode = "prefill"; }, ""},
      {[](auto& c) {
         c.disaggregation_mode = "decode";
         c.speculative.algorithm = "NGRAM";
       },
       ""},
      {[](auto& c) {
         c.disaggregation_mode = "prefill";
         c.speculative.algorithm = "NGRAM";
       },
       "--disaggregation-mode prefill: --speculative-algorithm NGRAM has no effect"},
      {[](auto& c) {
         c.disaggregation_mode = "decode";
         c.mesh = {.tp = 2, .pp = 2};
       },
       ""},
  });
  ExpectCases({{[](auto& c) { c.disaggregation_mode = "prefill"; }, ""},
               {[](auto& c) {
                  c.disaggregation_mode = "decode";
                  c.mesh = {.tp = 2, .pp = 2};
                },
                "--disaggregation-mode decode: on GPUs not supported with --pp-size 2; want 1"}},
              "qwen3_moe", {.gpus = true});
}

TEST(ChecksTest, ExpertsOnCpusBesideAGpu) {
  const auto with = [](auto change) {
    return [change](EngineConfig& c) {
      c.device = "cuda,cpu";
      c.mesh.expert_ranks = 3;
      change(c);
    };
  };
  ExpectCases(
      {
          {with([](auto&) {}), ""},
          {with([](auto& c) {
             c.mesh.expert_slots = {4, 5, 6, 7};
             c.moe.num_redundant_experts = 6;
             c.eplb.enable = true;
           }),
           ""},
          {with([](auto& c) { c.speculative = {.algorithm = "NGRAM"}; }), ""},
          {with([](auto& c) { c.moe.deepep_mode = "auto"; }), ""},
          {with([](auto& c) { c.moe.stream_experts = "512"; }), ""},
          {with([](auto& c) { c.moe.stream_experts = "some"; }),
           "--stream-experts some: want auto, off or a number of tokens"},
          {with([](auto& c) {
             c.moe.stream_experts = "auto";
             c.recorder.mode = "stat_approx";
           }),
           "--stream-experts auto: not supported with --expert-distribution-recorder-mode "
           "stat_app"},
          {with([](auto& c) { c.mesh.expert_ranks = 2; }),
           "--device cuda,cpu: --tp-size 4 and --expert-ranks 2 leave 2 ranks with attention"},
          {with([](auto& c) { c.mesh.expert_ranks = 0; }),
           "--device cuda,cpu: ranks with experts only compute on CPUs: want --expert-ranks"},
          {with([](auto& c) { c.moe.a2a_backend = "flashinfer"; }),
           "--device cuda,cpu: not supported with --moe-a2a-backend flashinfer; want deepep"},
          {with([](auto& c) { c.moe.a2a_backend = "none"; }),
           "--device cuda,cpu: not supported with --moe-a2a-backend none; want deepep"},
          {with([](auto& c) { c.moe.deepep_mode = "low_latency"; }),
           "--device cuda,cpu: not supported with --deepep-mode low_latency; want normal or auto"},
          {with([](auto& c) { c.moe.combine_rows = "rank"; }),
           "--device cuda,cpu: not supported with --moe-combine-rows rank; want slot"},
          {with([](auto& c) { c.two_batch_overlap = true; }),
           "--device cuda,cpu: not supported with --enable-two-batch-overlap"},
          {with([](auto& c) { c.moe.single_batch_overlap = true; }),
           "--device cuda,cpu: not supported with --enable-single-batch-overlap"},
          {with([](auto& c) { c.speculative = {.algorithm = "NEXTN"}; }),
           "--expert-ranks 3: not supported with --speculative-algorithm NEXTN"},
          {with([](auto& c) { c.quantization.layout = "panels"; }),
           "--cpu-weight-layout panels: supported on CPUs only"},
      },
      "qwen3_moe", {.gpus = true, .host_experts = true});
}

TEST(ChecksTest, RanksWithExpertsOnly) {
  const auto with = [](auto change) {
    return [change](EngineConfig& c) {
      c.mesh.expert_ranks = 2;
      change(c);
    };
  };
  ExpectCases({
      {with([](auto&) {}), ""},
      {with([](auto& c) {
         c.mesh.expert_slots = {1, 2, 3, 10};
       }),
       ""},
      {with([](auto& c) { c.two_batch_overlap = true; }), ""},
      {with([](auto& c) { c.speculative = {.algorithm = "NGRAM"}; }), ""},
      {with([](auto& c) { c.eplb.enable = true; }), ""},
      {with([](auto& c) { c.mesh.dp = 2; }), "--expert-ranks 2: each other rank needs whole"},
      {with([](auto& c) {
         c.mesh.expert_slots = {1, 2, 3, 4};
       }),
       "--expert-slots 1,2,3,4: 10 slots; want 16"},
      {with([](auto& c) {
         c.mesh.expert_slots = {1, 15};
       }),
       "--expert-slots has 2 numbers"},
      {with([](auto& c) {
         c.moe.num_redundant_experts = 12;
         c.mesh.expert_slots = {4, 4, 3, 17};
       }),
       "--expert-slots 4,4,3,17: a rank would hold an expert twice; want at most 16"},
      {with([](auto& c) { c.moe.stream_experts = "auto"; }),
       "--stream-experts auto: experts on CPUs are streamed to a GPU; want --device cuda,cpu"},
      {with([](auto& c) { c.spare_ranks = 1; }),
       "--expert-ranks 2: not supported with --spare-ranks"},
      {with([](auto& c) { c.elastic_ep_backend = "mooncake"; }),
       "--expert-ranks 2: not supported with --elastic-ep-backend mooncake"},
      {with([](auto& c) { c.disaggregation_mode = "prefill"; }),
       "--expert-ranks 2: not supported with --disaggregation-mode prefill"},
      {with([](auto& c) { c.speculative = {.algorithm = "NEXTN"}; }),
       "--expert-ranks 2: not supported with --speculative-algorithm NEXTN"},
      {with([](auto& c) { c.eplb.rank_costs = "1:40,20"; }),
       "--eplb-rank-costs 1:40,20: costs of 2 ranks; want those of 4 EP ranks"},
      {with([](auto& c) { c.eplb.rank_costs = "1:40,20,20,20"; }), ""},
      {with([](auto& c) {
         c.eplb.rank_costs = "1:40,20,20,20";
         c.eplb.dispatch = "lp";
       }),
       "--ep-dispatch-algorithm lp divides rows over equal ranks"},
      {with([](auto& c) {
         c.eplb.enable = true;
         c.eplb.algorithm = "deepseek";
         c.eplb.rank_costs = "1:40,20,20,20";
       }),
       "--enable-eplb, --eplb-algorithm deepseek: deepseek, deepseek_hierarchical and"},
  });
  const auto waterfill = with([](auto& c) { c.moe.waterfill = true; });
  ExpectCases({{waterfill, "--expert-ranks 2: not supported with --enable-deepep-waterfill"}},
              "deepseek_v3");
  ExpectCases({{with([](auto&) {}), "--expert-ranks 2: this model has no experts"}}, "llama");
  ExpectCases({{with([](auto&) {}), "--expert-ranks 2: supported on CPUs, and on one GPU"}},
              "qwen3_moe", {.gpus = true});
}

TEST(ChecksTest, ExpertsOfTheModel) {
  const auto waterfill = [](auto& c) { c.moe.waterfill = true; };
  ExpectCases({{waterfill, ""},
               {[](auto& c) {
                  c.moe.waterfill = true;
                  c.moe.a2a_backend = "none";
                  c.mesh = {.tp = 4, .ep = 4};
                },
                "--enable-deepep-waterfill: --moe-a2a-backend none sends no rows"},
               {[](auto& c) { c.moe.a2a_backend = "mailbox"; }, "--moe-a2a-backend mailbox"},
               {[](auto& c) { c.moe.runner_backend = "mailbox"; }, "--moe-runner-backend mailbox"},
               {[](auto& c) { c.moe.speculative_runner_backend = "x"; }, "--moe-runner-backend x"},
               {[](auto& c) { c.recorder.mode = "stat_approx"; }, ""},
               {[](auto& c) {
                  c.moe.a2a_backend = "fused";
                  c.recorder.mode = "stat";
                },
                ""},
               {[](auto& c) {
                  c.moe.a2a_backend = "fused";
                  c.recorder.mode = "stat_approx";
                },
                "stat_approx counts dispatched rows, which --moe-a2a-backend fused"}});
  // A shared expert that is dispatched has the size of the routed experts.
  ExpectCases({{waterfill, ""},
               {[](auto& c) {
                  c.moe.waterfill = true;
                  c.model_override_args = R"({"n_shared_experts": 2})";
                },
                "equal intermediate size (shared 64, routed 32)"},
               {[](auto& c) { c.model_override_args = R"({"n_shared_experts": 2})"; }, ""}},
              "deepseek_v3");
  // Flags of experts have no effect on models without experts.
  const auto dense = [](auto& c) {
    c.mesh = {.tp = 2};
    c.moe.a2a_backend = "mailbox";
  };
  ExpectCases({{dense, ""}}, "llama");
}

TEST(ChecksTest, GpusHaveLimitsOfTheirOwn) {
  constexpr RankPlaces kGpus{.gpus = true};
  ExpectCases(
      {{[](auto&) {}, ""},
       {[](auto& c) { c.moe.a2a_backend = "fused"; }, ""},
       {[](auto& c) {
          c.moe.a2a_backend = "fused";
          c.recorder.mode = "stat_approx";
        },
        ""},  // on GPUs, "fused" is an exchange
       {[](auto& c) { c.moe.deepep_mode = "fast"; }, "--deepep-mode fast"},
       {[](auto& c) { c.moe.num_redundant_experts = 4096; }, "at most 512 per GPU"},
       {[](auto& c) { c.elastic_ep_backend = "mooncake"; }, "ranks on GPUs serve only together"}},
      "qwen3_moe", kGpus);
}

TEST(ChecksTest, RanksThatServeWithoutOthers) {
  const auto with = [](const auto& change) {
    return [=](EngineConfig& c) {
      c.elastic_ep_backend = "mooncake";
      change(c);
    };
  };
  const std::vector<Case> cases = {
      {with([](auto&) {}), ""},
      {with([](auto& c) { c.speculative.algorithm = "NGRAM"; }), ""},
      {with([](auto& c) { c.speculative.algorithm = "NEXTN"; }), ""},
      {with([](auto& c) { c.eplb.enable = true; }), ""},
      {with([](auto& c) { c.disaggregation_mode = "prefill"; }), "--disaggregation-mode"}};
  ExpectCases(cases);
  ExpectCases({{cases[0].change, "all ranks must be on one host"}}, "qwen3_moe",
              {.several_hosts = true});
}

TEST(ChecksTest, SparesNeedRanksOfOneHostThatKeepTheirWeights) {
  const auto spares = [](int count) { return [=](EngineConfig& c) { c.spare_ranks = count; }; };
  ExpectCases({{spares(1), ""},
               {spares(16), ""},
               {spares(17), "--spare-ranks 17: want 0 to 16"},
               {spares(-1), "--spare-ranks -1: want 0 to 16"}});
  const auto moving = [](EngineConfig& c) {
    c.spare_ranks = 1;
    c.eplb.enable = true;
  };
  ExpectCases(
      {{spares(1), ""}, {moving, "--spare-ranks 1: on GPUs, not supported with --enable-eplb"}},
      "qwen3_moe", {.gpus = true});
  ExpectCases({{spares(2), "--spare-ranks 2: all ranks must be on one host"}}, "qwen3_moe",
              {.several_hosts = true});
}

// The same options, for ranks that `serve`, several nodes or a launcher start.
TEST(ChecksTest, MooncakeNeedsRanksThatShareMemory) {
  EngineConfig config = FourRanks();
  const RankPlaces launched{.shared_memory = false}, nodes{.several_hosts = true};
  for (const char* a2a : {"none", "deepep", "flashinfer", "fused"}) {
    config.moe.a2a_backend = a2a;
    for (const RankPlaces& places : {RankPlaces{}, launched, nodes})
      EXPECT_EQ(RefusalOf(config, places), kAccepted) << a2a;
  }
  config.moe.a2a_backend = "mooncake";
  EXPECT_EQ(RefusalOf(config), kAccepted);
  EXPECT_THAT(RefusalOf(config, nodes), HasSubstr("mooncake: supported on one host only"));
  EXPECT_THAT(RefusalOf(config, launched),
              HasSubstr("--moe-a2a-backend mooncake: supported on ranks that share memory only; "
                        "want one `serve` that starts all ranks itself (no mpirun or srun), or "
                        "--moe-a2a-backend deepep | flashinfer | none | fused"));
}

class PlainRunner : public Runner {
 public:
  RunnerLayout layout() const override { return RunnerLayout::kContiguous; }
  bool Supports(WeightFormat format) const override {
    return format == WeightFormat::kF32 || format == WeightFormat::kBF16;
  }
  void Run(const ExpertBlock&, const GroupedRows&, int64_t, ThreadPool&, float*) override {}
};

// A program's own backends are constructed to find out what they support.
TEST(ChecksTest, APlanRefusesExpertsThatTheRunnerDoesNotSupport) {
  EngineConfig config = FourRanks();
  auto backends = std::make_shared<MoeBackends>(BuiltinMoeBackends());
  backends->runners.Add("plain", {[] { return std::make_unique<PlainRunner>(); }, ""});
  config.backends = backends;
  EXPECT_EQ(ErrorOf([&] { MakePlan(config); }), kAccepted);
  config.moe.runner_backend = "plain";
  config.quantization.method = "fp8";
  EXPECT_THAT(ErrorOf([&] { MakePlan(config); }),
              HasSubstr("--moe-runner-backend plain does not support"));

  EngineConfig drafting = FourRanks("deepseek_v3");
  drafting.backends = backends;
  drafting.speculative = {.algorithm = "NEXTN"};
  drafting.moe.speculative_runner_backend = "plain";
  EXPECT_THAT(ErrorOf([&] { MakePlan(drafting); }),  // MTP layers are int8 by default
              HasSubstr("draft model: --moe-runner-backend plain does not support"));
  drafting.speculative.draft_quantization = "unquant";
  EXPECT_EQ(ErrorOf([&] { MakePlan(drafting); }), kAccepted);
}

TEST(ChecksTest, ValuesOutOfRangeAreRefusedByName) {
  ExpectCases(
      {{[](auto& c) { c.device = "tpu"; }, "--device tpu: want auto, cpu, cuda or cuda,cpu"},
       {[](auto& c) { c.gpu_id_step = -1; }, "--gpu-id-step -1"},
       {[](auto& c) { c.dtype = "int8"; }, "--dtype int8"},
       {[](auto& c) { c.dtype = "float16"; }, ""},
       {[](auto& c) { c.kv_cache_dtype = "fp8_e5m2"; }, "--kv-cache-dtype fp8_e5m2"},
       {[](auto& c) { c.context_length = 1; }, "--context-length 1: want 2 to"},
       {[](auto& c) { c.max_total_tokens = int64_t{1} << 60; }, "--max-total-tokens"},
       {[](auto& c) { c.speculative.num_steps = "17"; }, "--speculative-num-steps 17"}});
}

TEST(ChecksTest, WeightLayouts) {
  const auto layout = [](const char* name, const char* dtype = "auto") {
    return [=](EngineConfig& c) {
      c.quantization.layout = name;
      c.dtype = dtype;
      c.mesh = {.tp = 2, .ep = 2};
    };
  };
  ExpectCases({{layout("panels"), "--cpu-weight-layout panels: the checkpoint stores no weights"},
               {layout("stored"), "--cpu-weight-layout stored: the checkpoint stores no weights"},
               {layout("rows"), "--cpu-weight-layout rows: want auto, panels or stored"}});
  ExpectCases({{layout("auto"), ""},
               {layout("stored"), ""},
               {layout("stored", "float32"), ""},
               {layout("panels", "float32"),
                "--cpu-weight-layout panels: panels are multiplied with int8 activations"}},
              "../quantized/ct_mxfp4");
  ExpectCases({{layout("stored"), "--cpu-weight-layout stored: supported on CPUs only"}},
              "../quantized/ct_mxfp4", {.gpus = true});
  ExpectCases({{layout("stored"), "mixtral_q4_0.gguf is a GGUF file, whose weights are always"}},
              "../gguf/mixtral_q4_0.gguf");
}

TEST(ChecksTest, DraftModelsWithSparseAttentionOrNarrowValuesRunOnGpus) {
  EngineConfig config;
  config.speculative.draft_model_path = "drafts";
  for (const char* name : {"deepseek_v32", "mimo_v2_flash"}) {
    const ModelConfig draft = LoadModelConfig(Fixture("../families") / name);
    const auto error = [&](bool gpus) {
      return ErrorOf([&] { CheckDraft(config, draft, {.gpus = gpus}); });
    };
    EXPECT_EQ(error(false), kAccepted) << name;
    EXPECT_EQ(error(true), kAccepted) << name;
  }
}

TEST(ChecksTest, CachesInE4m3NeedKernelsOfTheirAttention) {
  const auto e4m3 = [](EngineConfig& c) { c.kv_cache_dtype = "fp8_e4m3"; };
  ExpectCases({{e4m3, ""}}, "qwen3_moe", {.gpus = true});
  ExpectCases({{e4m3, ""}}, "deepseek_v3", {.gpus = true});
  ExpectCases({{e4m3, ""}}, "../families/deepseek_v32");
  ExpectCases({{e4m3,
                "--kv-cache-dtype fp8_e4m3: not supported on GPUs for "
                "DeepseekV32ForCausalLM, which has an indexer of sparse attention"}},
              "../families/deepseek_v32", {.gpus = true});
  EngineConfig config;
  e4m3(config);
  const ModelConfig draft = LoadModelConfig(Fixture("../families") / "deepseek_v32");
  EXPECT_THAT(ErrorOf([&] { CheckDraft(config, draft, {.gpus = true}); }),
              HasSubstr("which has an indexer"));
}

TEST(ChecksTest, DynamicChunkingNeedsAttentionThatGrows) {
  EngineConfig config = FourRanks();
  config.mesh = {.pp = 2};
  config.moe.a2a_backend = "none";
  config.dynamic_chunking = true;
  EXPECT_EQ(RefusalOf(config), kAccepted);
  EnginePlan plan;
  plan.ranks_of_host = config.mesh.world();
  plan.model = ReadModelConfig(config);
  for (LayerConfig& layer : plan.model.layers) layer.window = 16;
  EXPECT_THAT(ErrorOf([&] { CheckOptions(config, plan, {}); }),
              HasSubstr("--enable-dynamic-chunking has no effect for Qwen3MoeForCausalLM"));
}

TEST(ChecksTest, GpusHaveAtMostSixteenStages) {
  const auto with = [](int stages) {
    return [stages](EngineConfig& c) { c.mesh = {.pp = stages}, c.moe.a2a_backend = "none"; };
  };
  ExpectCases({{with(17), ""}});
  ExpectCases({{with(16), ""}, {with(17), "--pp-size 17: want at most 16 stages on GPUs"}},
              "qwen3_moe", {.gpus = true});
}

}  // namespace
}  // namespace switchyard
