// Which options an engine accepts for models with recurrent states and with compressed attention.
#include <gmock/gmock.h>

#include "engine/checks/checks.h"
#include "engine/checks/test_checks.h"
#include "engine/config.h"

namespace switchyard {
namespace {

using testing::ExpectCases;
using testing::Fixture;
using testing::FourRanks;
using ::testing::HasSubstr;

TEST(ChecksTest, RecurrentStates) {
  const char* model = "../families/qwen3_next";
  const auto two = [](EngineConfig& c) { c.mesh = {.tp = 2, .ep = 2}; };
  ExpectCases({{two, ""},
               {[&](auto& c) {
                  two(c);
                  c.speculative = {.algorithm = "NGRAM"};
                },
                ""},
               {[&](auto& c) {
                  two(c);
                  c.speculative = {.algorithm = "NGRAM", .num_draft_tokens = 10};
                },
                "--speculative-num-draft-tokens 10: Qwen3NextForCausalLM has recurrent states, "
                "which allow at most 8 drafts"},
               {[&](auto& c) {
                  two(c);
                  c.speculative = {.algorithm = "NGRAM", .num_steps = "9"};
                },
                "--speculative-num-steps 9: Qwen3NextForCausalLM has recurrent states"},
               {[&](auto& c) {
                  two(c);
                  c.disaggregation_mode = "prefill";
                },
                ""},
               {[](auto& c) {
                  c.mesh = {.pp = 2};
                  c.moe.a2a_backend = "none";
                },
                ""},
               {[&](auto& c) {
                  two(c);
                  c.two_batch_overlap = true;
                },
                "--enable-two-batch-overlap: not supported for Qwen3NextForCausalLM"},
               {[](auto& c) {
                  c.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1};
                  c.elastic_ep_backend = "mooncake";
                },
                "--elastic-ep-backend mooncake: recurrent states are not supported"}},
              model);
  const auto wide = [&](EngineConfig& c) {
    two(c);
    c.model_override_args = R"({"linear_key_head_dim": 260})";
  };
  ExpectCases({{wide, ""}}, model);
  const auto drafts = [&](EngineConfig& c) {
    two(c);
    c.speculative = {.algorithm = "NGRAM"};
  };
  ExpectCases(
      {{drafts, "--speculative-algorithm NGRAM: not supported on GPUs for Qwen3NextForCausalLM"},
       {two, ""},
       {wide, "linear_key_head_dim=260 exceeds the CUDA limit of 256"}},
      model, {.gpus = true});
  const ModelConfig draft = LoadModelConfig(Fixture(model));
  EXPECT_THAT(ErrorOf([&] { CheckDraft(EngineConfig(), draft, {}); }),
              HasSubstr("a draft model with recurrent states is not supported"));
}

// Without entries, a model with compressed attention has no recurrent states either.
constexpr char kWithoutEntries[] =
    R"({"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                        "sliding_attention"]})";

TEST(ChecksTest, CompressedAttentionWithoutEntries) {
  const auto with = [](auto change) {
    return [change](EngineConfig& c) {
      c.mesh = {.tp = 2, .ep = 2};
      c.model_override_args = kWithoutEntries;
      change(c);
    };
  };
  ExpectCases(
      {{with([](auto&) {}), ""},
       {with([](auto& c) { c.two_batch_overlap = true; }),
        "--enable-two-batch-overlap: not supported for DeepseekV4ForCausalLM"},
       {with([](auto& c) { c.speculative = {.algorithm = "NGRAM"}; }), ""},
       {with([](auto& c) { c.speculative = {.algorithm = "NEXTN"}; }), ""},
       {with([](auto& c) {
          c.speculative = {
              .algorithm = "NEXTN", .num_steps = "2", .eagle_topk = 2, .num_draft_tokens = 4};
        }),
        "--speculative-eagle-topk 2: not supported for DeepseekV4ForCausalLM, which has "
        "compressed attention; want 1"}},
      "../families/deepseek_v4");
  EngineConfig config = FourRanks("../families/deepseek_v4");
  config.mesh = {};
  config.model_override_args = kWithoutEntries;
  EXPECT_EQ(MakePlan(config).max_forced, 0);
}

TEST(ChecksTest, DraftModelsWithCompressedAttention) {
  EngineConfig config;
  config.speculative.draft_model_path = "drafts";
  const ModelConfig draft = LoadModelConfig(Fixture("../families/deepseek_v4"), kWithoutEntries);
  EXPECT_FALSE(draft.has_states());
  EXPECT_THAT(ErrorOf([&] { CheckDraft(config, draft, {}); }),
              HasSubstr("--speculative-draft-model-path drafts: a draft model with compressed "
                        "attention (DeepseekV4ForCausalLM) is not supported"));
}

TEST(ChecksTest, CompressedAttention) {
  const char* model = "../families/deepseek_v4";
  const auto with = [](auto change) {
    return [change](EngineConfig& c) {
      c.mesh = {.tp = 2, .ep = 2};
      change(c);
    };
  };
  const auto nothing = with([](auto&) {});
  ExpectCases({{nothing, ""},
               {with([](auto& c) { c.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1}; }), ""},
               {with([](auto& c) { c.page_size = 4; }), ""},
               {with([](auto& c) { c.page_size = 6; }),
                "--page-size 6: not supported for DeepseekV4ForCausalLM; want a multiple of 4"},
               {with([](auto& c) { c.page_size = 1; }), "--page-size 1: not supported"},
               {with([](auto& c) {
                  c.mesh = {.pp = 2};
                  c.moe.a2a_backend = "none";
                }),
                ""},
               {with([](auto& c) { c.mesh = {.tp = 2, .ep = 2, .dp = 2, .pp = 4}; }), ""},
               {with([](auto& c) {
                  c.mesh = {.pp = 2};
                  c.moe.a2a_backend = "none";
                  c.speculative = {.algorithm = "NGRAM"};
                }),
                "--speculative-algorithm NGRAM: not supported with --pp-size 2 for "
                "DeepseekV4ForCausalLM, which has recurrent states"},
               {with([](auto& c) { c.speculative = {.algorithm = "NGRAM"}; }), ""},
               {with([](auto& c) { c.speculative = {.algorithm = "NEXTN"}; }), ""},
               {with([](auto& c) { c.speculative = {.algorithm = "NEXTN", .num_steps = "9"}; }),
                "--speculative-num-steps 9: DeepseekV4ForCausalLM has recurrent states"},
               {with([](auto& c) { c.two_batch_overlap = true; }), "--enable-two-batch-overlap"},
               {with([](auto& c) { c.disaggregation_mode = "prefill"; }), ""},
               {with([](auto& c) { c.disaggregation_mode = "decode"; }), ""},
               {with([](auto& c) { c.eplb.enable = true; }), ""},
               {with([](auto& c) { c.moe.num_redundant_experts = 2; }), ""},
               {with([](auto& c) { c.moe.waterfill = true; }), ""},
               {with([](auto& c) { c.quantization.method = "fp8"; }), ""},
               {with([](auto& c) {
                  c.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1};
                  c.elastic_ep_backend = "mooncake";
                }),
                "--elastic-ep-backend mooncake: recurrent states are not supported"}},
              model);
  ExpectCases({{nothing, ""},
               {with([](auto& c) { c.speculative = {.algorithm = "NEXTN"}; }),
                "--speculative-algorithm NEXTN: not supported on GPUs for DeepseekV4ForCausalLM"},
               {with([](auto& c) { c.model_override_args = R"({"index_head_dim": 520})"; }),
                "index_head_dim=520 exceeds the CUDA limit of 512"}},
              model, {.gpus = true});
}

}  // namespace
}  // namespace switchyard
