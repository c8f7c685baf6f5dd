// Layouts with pipeline stages: memory and times of each stage.
#include "plan/layout_costs.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "core/testing.h"
#include "engine/memory_plan.h"
#include "plan/report.h"
#include "plan/search.h"
#include "plan/test_question.h"

namespace switchyard::plan {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

constexpr double kInput = 4096;

struct Staged {
  Question question;
  Evaluation evaluation;
  std::unique_ptr<LayoutCosts> costs;

  explicit Staged(const std::string& layout, Question q = CpuQuestion("qwen3_30b_a3b", 4, 256))
      : question(std::move(q)), evaluation(Evaluate(question, ParseLayout(layout))) {
    if (evaluation.accepted)
      costs = std::make_unique<LayoutCosts>(question, evaluation.layout, evaluation.plan);
  }
};

TEST(StagesOfALayout, HaveTheMemoryOfTheEnginesPlan) {
  const Staged one("tp1"), staged("tp1-pp4");
  ASSERT_TRUE(staged.evaluation.accepted) << staged.evaluation.refused;
  const std::vector<StageMemory>& stages = staged.evaluation.stages;
  ASSERT_EQ(stages.size(), 4u);
  const EngineConfig config = ConfigOf(staged.evaluation.layout, staged.question.config);
  const WeightBytes whole = one.evaluation.stages.front().memory.weights;
  double layers = 0, kv = 0, total = 0;
  for (int i = 0; i < 4; ++i) {
    const RankMemory& memory = stages[i].memory;
    layers += memory.weights.experts + memory.weights.attention;
    kv += memory.kv_per_token;
    total += stages[i].total();
    EXPECT_EQ(memory.weights.embedding, i == 0 ? whole.embedding : 0) << i;
    EXPECT_EQ(memory.weights.head, i == 3 ? whole.head : 0) << i;
    EXPECT_DOUBLE_EQ(stages[i].cache,
                     StagePlanOf(config, staged.evaluation.plan, i).kv_bytes_per_rank);
  }
  EXPECT_NEAR(layers, whole.experts + whole.attention, 1);
  EXPECT_DOUBLE_EQ(kv, one.evaluation.stages.front().memory.kv_per_token);
  EXPECT_LE(total, 0.85 * staged.question.cluster.memory);
}

TEST(StagesOfALayout, FirstAndLastStageHoldATiedEmbedding) {
  Question q = CpuQuestion("qwen3_30b_a3b", 2, 256);
  q.model.tie_embeddings = true;
  const Staged staged("tp1-pp2", q);
  ASSERT_TRUE(staged.evaluation.accepted) << staged.evaluation.refused;
  const auto& stages = staged.evaluation.stages;
  EXPECT_GT(stages[0].memory.weights.embedding, 0);
  EXPECT_EQ(stages[1].memory.weights.head, stages[0].memory.weights.embedding);
  EXPECT_EQ(stages[0].memory.weights.head, 0);
}

// m passes through p equal stages take the time of m + p − 1 passes of a stage.
TEST(StagesOfALayout, PassesFillThePipeline) {
  Question q = CpuQuestion("qwen3_30b_a3b", 4, 256);
  q.table.host = {.seconds = 1e-9, .rate = 1e15};  // hidden rows cost nothing
  q.model.vocab_size = 16;                         // nor does the head
  const Staged staged("tp1-pp4-chunk512", q);
  ASSERT_TRUE(staged.evaluation.accepted) << staged.evaluation.refused;
  const double one = staged.costs->PrefillSeconds(512, kInput, 1);
  for (const double m : {1, 4, 16})
    EXPECT_NEAR(staged.costs->PrefillSeconds(512, kInput, m), one / 4 * (m + 3), 0.02 * one * m);
  EXPECT_DOUBLE_EQ(staged.costs->Prefill(512, kInput).seconds, one);
  const Staged whole("tp1", q);
  EXPECT_DOUBLE_EQ(whole.costs->PrefillSeconds(512, kInput, 8),
                   8 * whole.costs->Prefill(512, kInput).seconds);
}

TEST(StagesOfALayout, DecodingRequestsTakeTurns) {
  const Staged staged("tp1-pp4");
  ASSERT_TRUE(staged.evaluation.accepted) << staged.evaluation.refused;
  const auto parts = [&](double running) {
    const auto micro = staged.costs->DecodeMicroBatches(running);
    return std::pair(micro.running, micro.passes);
  };
  EXPECT_EQ(parts(1), std::pair(1.0, 1.0));
  EXPECT_EQ(parts(3), std::pair(1.0, 3.0));
  EXPECT_EQ(parts(4), std::pair(1.0, 4.0));
  EXPECT_EQ(parts(10), std::pair(3.0, 4.0));
  EXPECT_EQ(parts(9), std::pair(3.0, 3.0));
  // One request waits for all stages; four requests use them at the same time.
  const StepTime one = staged.costs->Decode(1, kInput), four = staged.costs->Decode(4, kInput);
  EXPECT_LT(four.seconds, 1.5 * one.seconds);
  EXPECT_NEAR(one.work.sum(), one.seconds, 1e-9);
  const auto waits = [](const StepTime& time) {
    return time.work.limits[static_cast<size_t>(Limit::kWait)] / time.seconds;
  };
  EXPECT_GT(waits(one), 0.5);
  EXPECT_LT(waits(four), 0.3);
}

TEST(StagesOfALayout, EachStageButTheEndsCopiesHiddenRowsTwice) {
  Question q = CpuQuestion("qwen3_30b_a3b", 4, 256);
  const Staged staged("tp1-pp4", q);
  const PassTime pass = staged.costs->PassOf(staged.costs->PrefillShape(1000, kInput));
  const double rows = 1000 * 2048 * 4;
  const double send = q.table.host.seconds + rows / (q.table.host.rate / 4);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(pass.stages[i].work.parts[static_cast<size_t>(Part::kStages)],
                i == 0 || i == 3 ? send : 2 * send, 1e-9);
}

TEST(StagesOfALayout, ASearchOnCpusHasThem) {
  Question q = CpuQuestion("qwen3_30b_a3b", 2, 256);
  q.load.batch = 1;
  q.stages = 2;
  const std::vector<Evaluation> all = Search(q);
  EXPECT_THAT(all,
              Each(Field(&Evaluation::layout, Field(&Layout::mesh, Field(&MeshShape::pp, 2)))));
  ASSERT_TRUE(all.front().best.has_value());
  EXPECT_THAT(ServeCommand(q, all.front()), HasSubstr(" --pp-size 2"));
  EXPECT_THAT(ReportJson(q, all), HasSubstr("\"stages\""));
  q.stages = 0;
  q.config.pp_layer_partition = "20,28";
  const Evaluation e = Evaluate(q, ParseLayout("tp1-pp2"));
  ASSERT_TRUE(e.accepted) << e.refused;
  EXPECT_EQ(e.stages.front().layers.end, 20);
  EXPECT_THAT(Explain(q, e.layout), AllOf(HasSubstr("Are layers divided into pipeline stages?"),
                                          HasSubstr("layers 0 to 19"), HasSubstr("m / (m + p - 1)"),
                                          HasSubstr("--pp-layer-partition 20,28")));
}

// A question about a model of tests/data/families.
Question FamilyQuestion(const std::string& name) {
  const auto folder = std::filesystem::path(SWITCHYARD_TEST_DATA) / "families" / name;
  Question q{.model = LoadModelConfig(folder), .table = CpuDefaults(2)};
  q.config.model_path = folder;
  q.cluster = {.card = "host", .per_node = 2, .cpus = 2, .memory = 8e9};
  return q;
}

// Half of the layers with an indexer cost half of it.
TEST(LayoutCosts, IndexersCountWhereTheyAre) {
  const auto seconds = [](bool decode, int shared) {
    Question q = FamilyQuestion("glm_moe_dsa_shared");
    for (int i = 0; i < 4; ++i) q.model.layers[i].shared_index = i >= 4 - shared;
    const Layout layout = ParseLayout("tp1");
    const LayoutCosts costs(q, layout, Admit(q, layout).plan);
    const StepTime step = costs.Of({.decode = decode, .sequences = 2, .rows = 64, .keys = 100});
    return step.work.parts[static_cast<size_t>(Part::kAttention)];
  };
  for (const bool decode : {false, true}) {
    const double all = seconds(decode, 0), none = seconds(decode, 4);
    EXPECT_LT(none, seconds(decode, 2));
    EXPECT_LT(seconds(decode, 2), all);
  }
  EXPECT_NEAR(seconds(false, 2), (seconds(false, 0) + seconds(false, 4)) / 2,
              1e-6 * seconds(false, 0));
}

TEST(LayoutCosts, RefuseRecurrentStates) {
  const Question q = FamilyQuestion("qwen3_next");
  const Layout layout = ParseLayout("tp1");
  const std::string want =
      "Qwen3NextForCausalLM: there are no costs of layers with recurrent states; a running request "
      "has two states of ";
  EXPECT_THAT(ErrorOf([&] { Evaluate(q, layout); }), HasSubstr(want));  // of `plan`
  const EnginePlan plan = Admit(q, layout).plan;
  EXPECT_GT(plan.num_states, 0);
  EXPECT_THAT(ErrorOf([&] { LayoutCosts(q, layout, plan); }), HasSubstr(want));  // of `simulate`
}

// A decode step of DeepSeek-V4 in which all layers have the same kind.
double EntrySeconds(int32_t compress, bool overlaps, double keys) {
  Question q = FamilyQuestion("deepseek_v4");
  q.model.attention.index_heads = 2;  // scores cost less than attention
  for (LayerConfig& layer : q.model.layers) {
    layer.compress = compress;
    layer.overlaps = overlaps;
  }
  const Layout layout = ParseLayout("tp1");
  const LayoutCosts costs(q, layout, Admit(q, layout).plan);
  const StepTime step =
      costs.Of({.decode = true, .sequences = 2, .rows = 2, .keys = keys, .logit_rows = 2});
  return step.work.parts[static_cast<size_t>(Part::kAttention)];
}

TEST(LayoutCosts, EntriesCountByTheKindOfTheirLayer) {
  const double window = EntrySeconds(0, false, 100);
  EXPECT_DOUBLE_EQ(EntrySeconds(0, false, 1000), window);
  const auto growth = [](int32_t compress, bool overlaps, double from) {
    return EntrySeconds(compress, overlaps, from + 400) - EntrySeconds(compress, overlaps, from);
  };
  const double all = growth(8, false, 100);
  EXPECT_GT(all, 0);
  EXPECT_NEAR(growth(8, false, 500), all, 1e-6 * all);
  EXPECT_NEAR(growth(4, false, 100), 2 * all, 1e-6 * all);
  // Beyond index_topk entries, only the scores of the indexer grow.
  const double scores = growth(8, true, 100);
  EXPECT_GT(scores, 0);
  EXPECT_LT(scores, all / 2);
  EXPECT_GT(EntrySeconds(8, false, 100), window);
  EXPECT_GT(EntrySeconds(8, true, 16), EntrySeconds(8, false, 16));  // products of the indexer
}

TEST(LayoutCosts, StreamsAndTokenIdsCountInEachBlock) {
  constexpr double kRows = 64;
  const auto seconds = [](int64_t streams, bool by_token, Part part) {
    Question q = FamilyQuestion("deepseek_v4");
    q.model.streams->count = streams;
    for (LayerConfig& layer : q.model.layers) layer.by_token = by_token;
    const Layout layout = ParseLayout("tp1");
    const LayoutCosts costs(q, layout, Admit(q, layout).plan);
    const StepTime step =
        costs.Of({.decode = false, .sequences = 2, .rows = kRows, .keys = 16, .logit_rows = 2});
    return step.work.parts[static_cast<size_t>(part)];
  };
  // The output of experts is added to each stream: read and written, in four layers.
  const double bytes = 4 * kRows * 2 * 4 * 32 * sizeof(float);
  EXPECT_NEAR(seconds(8, false, Part::kCombine) - seconds(4, false, Part::kCombine),
              bytes / CpuDefaults(2).bandwidth, 1e-12);
  for (const Part of : {Part::kAttention, Part::kRouter, Part::kHead})
    EXPECT_GT(seconds(8, false, of), seconds(4, false, of));
  EXPECT_GT(seconds(4, true, Part::kRouter), seconds(4, false, Part::kRouter));
}

TEST(StagesOfALayout, SendTheStreamsOfDeepSeekV4) {
  Question q = FamilyQuestion("deepseek_v4");
  q.config.pp_layer_partition = "2,2";
  const Staged staged("tp1-pp2", q);
  ASSERT_TRUE(staged.evaluation.accepted) << staged.evaluation.refused;
  const Link& link = staged.question.table.host;
  EXPECT_NEAR(staged.costs->SendSeconds(100),
              link.seconds + 100 * 4 * 32 * sizeof(float) / (link.rate / 2), 1e-12);
  // Both stages have the states of their layers: two of three are on the second one.
  const std::vector<StageMemory>& stages = staged.evaluation.stages;
  const double states = stages[0].memory.states + stages[1].memory.states;
  EXPECT_EQ(states,
            Staged("tp1", FamilyQuestion("deepseek_v4")).evaluation.largest().memory.states);
  EXPECT_GT(stages[0].memory.states, 0);
  EXPECT_THAT(Explain(staged.question, staged.evaluation.layout),
              AllOf(HasSubstr("The row and the entries of a token are the same for all heads"),
                    HasSubstr("0.5 KB of hidden rows"), HasSubstr("recurrent states 0.0")));
}

TEST(StagesOfALayout, OnGpusOfSeveralHostsAreExplainedOnPaper) {
  const Question q = GpuQuestion("deepseek_v3", "h200", 8, 2);
  EXPECT_THAT(Explain(q, ParseLayout("tp8-pp2-ep8-dp8-dense1-deepep")),
              AllOf(HasSubstr("the engine refuses it: --pp-size 2: supported on GPUs of one host"),
                    HasSubstr("stage 1, layers "), HasSubstr("if the engine accepted it?")));
}

}  // namespace
}  // namespace switchyard::plan
