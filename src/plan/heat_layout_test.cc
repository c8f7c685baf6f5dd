// Experts on a GPU and on CPUs: what fits cards of 24 to 80 GB, and which placement is faster.
#include "plan/heat_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// gpt-oss-120b has 36 layers of 128 experts, and is else equal to gpt-oss-20b.
ModelConfig GptOss120b() {
  std::ifstream in(SWITCHYARD_TEST_DATA "/plan/gpt_oss_20b.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["num_hidden_layers"] = 36;
  config["num_local_experts"] = 128;
  config["layer_types"] = nlohmann::json::array();
  for (int layer = 0; layer < 36; ++layer)
    config["layer_types"].push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  return ParseModelConfig(config.dump(), {}, {});
}

HeatQuestion QuestionOf(const ModelConfig& model, const std::string& card, double gpu_gib,
                        double gib) {
  HeatQuestion q{.model = model,
                 .cpu_model = model,
                 .gpu = ShippedTable(card),
                 .cpu = CpuDefaults(16),
                 .packs_experts = card.starts_with("h"),
                 .gpu_memory = gpu_gib * kGiB,
                 .host_memory = gib * kGiB};
  q.config.context_length = 8192;
  return q;
}

TEST(HeatLayoutTest, GptOss120bFitsCardsOfEachSizeWithEnoughMemory) {
  int last = -1;
  for (const double card : {24, 48, 80}) {
    const HeatLayout layout(QuestionOf(GptOss120b(), "h100", card, 192));
    const HeatMemory& m = layout.memory();
    EXPECT_EQ(m.experts, 128);
    EXPECT_EQ(m.layers, 36);
    // 120b parameters in MXFP4: an expert has 3 · 2880² weights of 4.25 bits, and biases. Both
    // sides have stored rows, not panels.
    EXPECT_NEAR(m.gpu_expert, 3 * 2880.0 * 2880 * 4.25 / 8, 0.005 * m.gpu_expert);
    if (m.on_gpu < m.experts) {
      EXPECT_NEAR(m.cpu_expert, m.gpu_expert, 0.005 * m.gpu_expert);
    }
    EXPECT_GT(m.on_gpu, last);
    last = m.on_gpu;
    EXPECT_LE(m.gpu_total(), card * kGiB * 0.85);
    // No room for another expert of each layer is left, unless all are on the GPU. One layer has a
    // second place for each expert, while experts move.
    if (m.on_gpu < m.experts) {
      EXPECT_GT(m.gpu_total() + m.gpu_expert * (m.layers + 1.01), card * kGiB * 0.85);
    }
    EXPECT_EQ(layout.serve_flags().empty(), m.on_gpu == m.experts);
    if (m.on_gpu < m.experts) {
      EXPECT_THAT(layout.serve_flags(),
                  HasSubstr(fmt::format("--expert-slots {},{} ", m.on_gpu, 128 - m.on_gpu)));
    }
    EXPECT_NEAR(m.host_total(), m.cpu_expert * m.layers * (128 - m.on_gpu), 1);
  }
  EXPECT_EQ(last, 128);  // 80 GB hold all of it
}

TEST(HeatLayoutTest, DeepSeekV3NeedsAHostThatHoldsItsExperts) {
  const ModelConfig model = PublishedModel("deepseek_v3");
  const HeatLayout large(QuestionOf(model, "h100", 80, 768));
  EXPECT_GT(large.memory().on_gpu, 0);
  EXPECT_LT(large.memory().on_gpu, 64);
  const auto refusal = [&](double gpu_gib, double gib) {
    return RefusalOf([&] { const HeatLayout layout(QuestionOf(model, "h100", gpu_gib, gib)); });
  };
  EXPECT_THAT(refusal(80, 192), HasSubstr("--host-memory 192: the "));
  const std::string small = refusal(12, 768);
  EXPECT_THAT(small, HasSubstr("--memory 12: weights without routed experts take"));
  EXPECT_THAT(small, HasSubstr("lower --cache-tokens or --chunked-prefill-size"));
  EXPECT_NE(refusal(24, 64), "");
}

TEST(HeatLayoutTest, HotExpertsOnTheGpuAreFasterThanWholeLayers) {
  for (const char* loads : {"uniform", "zipf:1"}) {
    HeatQuestion q = QuestionOf(GptOss120b(), "h100", 24, 192);
    q.expert_loads = loads;
    const HeatLayout layout(std::move(q));
    const auto popularity = layout.popularity();
    EXPECT_NEAR(std::accumulate(popularity.begin(), popularity.end(), 0.0), 4, 1e-6);
    double last = 0;
    for (const double batch : {1, 8, 32}) {
      const HeatTime heat = layout.Decode(batch, 512);
      const HeatTime layers = layout.Decode(batch, 512, ExpertsPlacedBy::kLayers);
      EXPECT_GT(heat.seconds, last);  // a larger batch takes longer
      last = heat.seconds;
      EXPECT_GE(heat.seconds, heat.bound);
      EXPECT_NEAR(heat.other, layers.other, 1e-12);
      EXPECT_LT(heat.seconds, layers.seconds * 1.02) << loads << " batch " << batch;
      if (std::string(loads) == "zipf:1") {
        EXPECT_LT(1.2 * heat.cpu, layers.cpu) << "batch " << batch;
      }
    }
  }
}

// Each chunk of a prompt is a step, which reads the experts that have rows.
TEST(HeatLayoutTest, PromptsRunInChunks) {
  HeatQuestion q = QuestionOf(GptOss120b(), "h100", 48, 192);
  q.config.chunked_prefill_size = 1024;
  const HeatLayout layout(q);
  q.config.chunked_prefill_size = 4096;
  const HeatLayout longer(q);
  EXPECT_GT(layout.memory().on_gpu, longer.memory().on_gpu - 1);  // longer chunks need memory
  const double one = layout.Prefill(1024).seconds, four = layout.Prefill(4096).seconds;
  EXPECT_GT(four, 4 * one);  // later chunks have more keys
  EXPECT_LT(four, 4.5 * one);
  EXPECT_LT(layout.Prefill(1500).seconds, layout.Prefill(2048).seconds);
}

// A long prompt uses each expert for many rows, so reading the weights over the link is worth it.
TEST(HeatLayoutTest, LongPromptsStreamExpertsToTheGpu) {
  HeatQuestion q = QuestionOf(GptOss120b(), "h100", 48, 192);
  q.config.chunked_prefill_size = 8192;
  const HeatLayout layout(std::move(q));
  const HeatTime prompt = layout.Prefill(8192, ExpertsPlacedBy::kHeat, /*streams=*/true);
  EXPECT_EQ(prompt.streamed, 36);
  EXPECT_LT(prompt.seconds, layout.Prefill(8192).seconds);
  EXPECT_EQ(layout.Prefill(8192).streamed, 0);
  EXPECT_EQ(layout.Decode(1, 512).streamed, 0);
  HeatQuestion slow = QuestionOf(GptOss120b(), "h100", 48, 192);
  slow.link.rate = 1e9;
  const HeatLayout slow_layout(std::move(slow));
  const auto streamed = [](const HeatLayout& of, double rows) {
    return of.Prefill(rows, ExpertsPlacedBy::kHeat, /*streams=*/true);
  };
  EXPECT_GE(streamed(slow_layout, 512).seconds, streamed(layout, 512).seconds);
  EXPECT_EQ(streamed(slow_layout, 64).streamed, 0);
}

TEST(HeatLayoutTest, WithAllExpertsOnTheGpuNoRowCrossesTheLink) {
  const HeatLayout layout(QuestionOf(GptOss120b(), "h100", 141, 64));
  EXPECT_EQ(layout.memory().on_gpu, 128);
  const HeatTime time = layout.Decode(8, 512);
  EXPECT_EQ(time.cpu, 0);
  EXPECT_EQ(time.link, 0);
  EXPECT_THAT(HeatReport(layout), HasSubstr("128 of 128 experts of each layer on the GPU"));
}

TEST(HeatLayoutTest, DeepSeekV4HasCostsAndLinearAttentionHasNone) {
  const auto question_of = [](const char* family) {
    const std::string folder = std::string(SWITCHYARD_TEST_DATA) + "/families/" + family;
    HeatQuestion q = QuestionOf(LoadModelConfig(folder), "h100", 24, 64);
    q.config.context_length = 256;
    return q;
  };
  const HeatLayout layout(question_of("deepseek_v4"));
  EXPECT_GT(layout.Decode(8, 100, ExpertsPlacedBy::kHeat).other,
            layout.Decode(1, 100, ExpertsPlacedBy::kHeat).other);
  EXPECT_THAT(RefusalOf([&] { HeatLayout refused(question_of("qwen3_next")); }),
              HasSubstr("there are no costs of layers with recurrent states"));
}

TEST(HeatLayoutTest, OtherQuestionsAreRefused) {
  HeatQuestion q = QuestionOf(GptOss120b(), "h100", 24, 192);
  q.expert_loads = "recording.json";
  EXPECT_THAT(RefusalOf([&] { const HeatLayout layout(q); }),
              HasSubstr("--expert-loads recording.json: want uniform or zipf:EXPONENT"));
}

}  // namespace
}  // namespace switchyard::plan
