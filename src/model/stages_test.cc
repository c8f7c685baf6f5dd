#include "model/stages.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "core/testing.h"
#include "model/rank_memory.h"
#include "model/test_layouts.h"
#include "model/weights.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> SizesOf(const std::vector<schedule::LayerRange>& ranges) {
  std::vector<int> sizes;
  sizes.reserve(ranges.size());
  for (const schedule::LayerRange& range : ranges) sizes.push_back(range.size());
  return sizes;
}

// A model without a head, so that all cost is in the layers.
ModelConfig Dense(int layers) {
  ModelConfig model;
  model.hidden = model.intermediate = 64;
  model.attention = {.heads = 4, .kv_heads = 4, .head_dim = 16};
  model.layers.resize(layers);
  return model;
}

TEST(SplitLayers, EqualLayersAreSpreadEvenly) {
  EXPECT_THAT(SizesOf(SplitLayers(Dense(8), 1)), ElementsAre(8));
  EXPECT_THAT(SizesOf(SplitLayers(Dense(8), 2)), ElementsAre(4, 4));
  EXPECT_THAT(SizesOf(SplitLayers(Dense(8), 8)), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  std::vector<int> sizes = SizesOf(SplitLayers(Dense(10), 4));
  std::ranges::sort(sizes);
  EXPECT_THAT(sizes, ElementsAre(2, 2, 3, 3));
}

TEST(SplitLayers, ALayerWithoutAnIndexerHasTheStageOfTheLayerBefore) {
  ModelConfig model = Dense(6);
  model.attention.index_topk = 8;
  for (const int i : {1, 2, 3, 5}) model.layers[i].shared_index = true;
  EXPECT_THAT(SizesOf(SplitLayers(model, 2)), ElementsAre(4, 2));
  EXPECT_THAT(ErrorOf([&] { SplitLayers(model, 3); }), HasSubstr("--pp-size 3: 4 of the 6"));
  EXPECT_THAT(ErrorOf([&] {
                SplitLayers(model, 2, std::vector<int>{3, 3});
              }),
              HasSubstr("3,3: layers 2 and 3 are parts of one block"));
}

TEST(SplitLayers, CostCountsTheSelectedExpertsAndTheHead) {
  ModelConfig model = Dense(8);
  // MoE layers cost about four times as much as dense ones.
  model.moe = MoeModelConfig{.router = {.num_experts = 64, .top_k = 8}, .intermediate = 64};
  for (int i = 4; i < 8; ++i) model.layers[i].moe = true;
  EXPECT_THAT(SizesOf(SplitLayers(model, 2)), ElementsAre(6, 2));
  model.vocab_size = 100'000;  // the head costs more than all layers
  EXPECT_THAT(SizesOf(SplitLayers(model, 2)), ElementsAre(7, 1));
}

// For one token, the head costs as much as 1.5 layers. But a prompt needs it for its last token
// only. A decode pass of many tokens reads most experts, so a layer costs four times as much as the
// head.
TEST(SplitLayers, TheHeadCountsInDecodePassesOnly) {
  ModelConfig model = Dense(8);
  model.hidden = 2048;
  model.attention = {.heads = 16, .kv_heads = 16, .head_dim = 128};
  model.moe = MoeModelConfig{.router = {.num_experts = 64, .top_k = 8}, .intermediate = 1024};
  for (LayerConfig& layer : model.layers) layer.moe = true;
  model.vocab_size = 50'304;
  EXPECT_THAT(SizesOf(SplitLayers(model, 2)), ElementsAre(4, 4));
  EXPECT_THAT(SizesOf(SplitLayers(model, 4)), ElementsAre(2, 2, 2, 2));
  // Now the head costs as much as four layers in decode.
  model.vocab_size = 800'000;
  EXPECT_THAT(SizesOf(SplitLayers(model, 2)), ElementsAre(5, 3));
}

// Checks the ratio against a count by hand.
TEST(KeysOfWeights, ComparesAttentionWithWeights) {
  ModelConfig model = Dense(3);
  // Of a layer: q, k, v and output 4 x 64 x 64, feed-forward 3 x 64 x 64; a key 2 x 64.
  EXPECT_DOUBLE_EQ(KeysOfWeights(model), 7 * 64 * 64 / (2.0 * 64));
  model.layers[0].window = 10;
  EXPECT_DOUBLE_EQ(KeysOfWeights(model), (3 * 7 * 64 * 64 + 10 * 2 * 64) / (2 * 2.0 * 64));
  for (LayerConfig& layer : model.layers) layer.chunk = 16;
  EXPECT_EQ(KeysOfWeights(model), std::numeric_limits<double>::infinity());
}

// Both layers attend to 10 keys; the indexer of the first one scores all.
TEST(KeysOfWeights, CountsTheScoresOfIndexers) {
  ModelConfig model = Dense(2);
  AttentionConfig& a = model.attention;
  a = {.kind = AttentionConfig::Kind::kLatent, .heads = 4};
  a.q_lora_rank = 8;
  a.kv_lora_rank = 16;
  a.qk_nope_head_dim = 12;
  a.qk_rope_head_dim = 4;
  a.v_head_dim = 8;
  a.index_topk = 10;
  a.index_heads = 2;
  a.index_head_dim = 6;
  model.layers[1].shared_index = true;
  constexpr double kQueries = 8 * (64 + 4 * 16), kLatents = 64 * 20 + 16 * 4 * (12 + 8);
  constexpr double kLayer = kQueries + kLatents + 4 * 8 * 64 + 3 * 64 * 64;
  constexpr double kIndexer = 2 * (8 * 6 + 64) + 64 * 6, kKeys = 10 * 4 * (2 * 16 + 4);
  EXPECT_DOUBLE_EQ(KeysOfWeights(model), (2 * (kLayer + kKeys) + kIndexer) / (2.0 * 6));
}

// Attention to all entries grows, and so do the scores of indexers. Window and selected entries
// count as weights.
TEST(KeysOfWeights, CountsCompressedEntries) {
  ModelConfig model = Dense(3);
  AttentionConfig& a = model.attention;
  a = {.kind = AttentionConfig::Kind::kCompressed, .heads = 4, .head_dim = 16};
  a.q_lora_rank = 8;
  a.output_groups = 2;
  a.output_rank = 12;
  a.index_topk = 10;
  a.index_heads = 2;
  a.index_head_dim = 6;
  model.streams = StreamsConfig{.count = 2};
  for (LayerConfig& layer : model.layers) layer.window = 5;
  EXPECT_EQ(KeysOfWeights(model), std::numeric_limits<double>::infinity());
  model.layers[1].compress = 8;
  model.layers[2].compress = 4;
  model.layers[2].overlaps = true;
  constexpr double kProjections = 64 * (8 + 16) + 4 * 16 * (8 + 12) + 2 * 12 * 64;
  constexpr double kStreams = 2 * (2 * 64) * 8;  // 8 logits for each of two blocks
  constexpr double kLayer = kProjections + kStreams + 3 * 64 * 64, kKey = 4 * 2 * 16;
  constexpr double kBlocks = 2 * 64 * 16 + 2 * 64 * 2 * 16;
  constexpr double kIndexer = 2 * 64 * 2 * 6 + 2 * (8 * 6 + 64);
  EXPECT_DOUBLE_EQ(
      KeysOfWeights(model),
      (3 * (kLayer + 5 * kKey) + kBlocks + kIndexer + 10 * kKey) / (kKey / 8 + 2.0 * 6 / 4));
}

// Layers of one kind are counted once. Kinds differ in all that changes the weights.
TEST(WeightsOfRank, CountsLayersOfDifferentKinds) {
  ModelConfig mixed = LoadModelConfig(Fixture(kMixedLayers));
  mixed.layers[2].kv_heads = 2;
  mixed.layers[3].sinks = !mixed.layers[3].sinks;
  for (const ModelConfig& model : {mixed, LoadModelConfig(Fixture("../families/qwen3_next")),
                                   LoadModelConfig(Fixture("../families/glm_moe_dsa_shared"))}) {
    SCOPED_TRACE(model.architecture);
    double attention = 0, dense = 0, experts = 0;
    for (int i = 0; i < model.num_layers(); ++i) {
      const WeightBytes one = WeightsOfRank(StageConfigOf(model, {.begin = i, .end = i + 1}), {});
      attention += one.attention;
      dense += one.dense;
      experts += one.experts;
    }
    const WeightBytes whole = WeightsOfRank(model, {});
    EXPECT_DOUBLE_EQ(whole.attention, attention);
    EXPECT_DOUBLE_EQ(whole.dense, dense);
    EXPECT_DOUBLE_EQ(whole.experts, experts);
  }
}

// Formats of activations are chosen by the first MoE layer of the model, in each of its stages.
TEST(StageConfig, KnowsTheFirstMoeLayerOfTheModel) {
  ModelConfig model = Dense(4);
  model.moe = MoeModelConfig{.router = {.num_experts = 4, .top_k = 2}, .intermediate = 64};
  for (int i = 1; i < 4; ++i) model.layers[i].moe = true;
  for (const auto& range : SplitLayers(model, 4, std::vector<int>{1, 1, 1, 1}))
    EXPECT_EQ(StageConfigOf(model, range).first_moe_layer, 1);
  for (const auto& range : SplitLayers(model, 4, std::vector<int>{1, 1, 1, 1}))
    EXPECT_EQ(StageConfigOf(model, range).routed_width(), 4 * 2);
  EXPECT_EQ(StageConfigOf(Dense(2), SplitLayers(Dense(2), 1).front()).first_moe_layer, -1);
}

TEST(SplitLayers, FirstHasTheEmbeddingAndLastTheHead) {
  const auto ranges = SplitLayers(Dense(5), 3, std::vector<int>{2, 2, 1});
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(ranges[1].begin, 2);
  EXPECT_EQ(ranges[2].begin, 4);
  for (int stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(ranges[stage].has_embedding, stage == 0);
    EXPECT_EQ(ranges[stage].has_head, stage == 2);
  }
}

TEST(SplitLayers, KeepsALayerWithAShortcutAndTheNextOneTogether) {
  ModelConfig model = Dense(8);
  model.moe = MoeModelConfig{.router = {.num_experts = 4, .top_k = 2}, .intermediate = 8};
  for (int i = 0; i < 8; i += 2) model.layers[i].moe = model.layers[i].shortcut = true;
  EXPECT_THAT(SizesOf(SplitLayers(model, 4)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(SizesOf(SplitLayers(model, 2, std::vector<int>{6, 2})), ElementsAre(6, 2));
  EXPECT_THAT(ErrorOf([&] {
                SplitLayers(model, 2, std::vector<int>{5, 3});
              }),
              HasSubstr("5,3: layers 4 and 5 are parts of one block and need the same stage"));
  EXPECT_THAT(ErrorOf([&] { SplitLayers(model, 5); }),
              HasSubstr("--pp-size 5: 4 of the 8 layers need the same stage as the next one"));
}

TEST(SplitLayers, RefusesSizesThatDoNotFit) {
  const auto error_of = [](int stages, const std::vector<int>& sizes) {
    return ErrorOf([&] { SplitLayers(Dense(5), stages, sizes); });
  };
  EXPECT_THAT(error_of(6, {}), HasSubstr("--pp-size 6: the model has 5 layers"));
  EXPECT_THAT(error_of(2, {2, 2, 1}), HasSubstr("--pp-layer-partition 2,2,1: want 2 numbers"));
  EXPECT_THAT(error_of(2, {5, 0}), HasSubstr("5,0: each stage needs at least 1 layer"));
  EXPECT_THAT(error_of(2, {2, 2}), HasSubstr("2,2: the sum is 4, but the model has 5 layers"));
}

// Stages read the weights of the whole model once. The last stage of a model with tied embeddings
// reads the embedding for its head.
TEST(StageConfig, StagesReadEachWeightOnce) {
  for (const char* fixture : {"deepseek_v3", "deepseek_v3_fp8", "gpt_oss", "qwen2_moe", "llama",
                              kMixedLayers, "../families/deepseek_v4"}) {
    SCOPED_TRACE(fixture);
    const ModelConfig model = LoadModelConfig(Fixture(fixture));
    for (int stages = 1; stages <= model.num_layers(); ++stages) {
      WeightBytes sum;
      size_t bytes = 0;
      for (const schedule::LayerRange& range : SplitLayers(model, stages)) {
        const ModelConfig stage = StageConfigOf(model, range);
        EXPECT_EQ(stage.num_layers(), range.size());
        const WeightBytes own = WeightsOfRank(stage, {});
        EXPECT_EQ(own.embedding > 0, range.has_embedding);
        sum.embedding += own.embedding;
        sum.head += own.head;
        sum.experts += own.experts;
        bytes += WeightBytesPerRank(stage, Mesh());
      }
      const WeightBytes whole = WeightsOfRank(model, {});
      EXPECT_EQ(sum.embedding, whole.embedding);
      EXPECT_EQ(sum.experts, whole.experts);
      const bool twice = model.tie_embeddings && stages > 1;
      EXPECT_EQ(sum.head, twice ? whole.embedding : whole.head);
      const double want =
          static_cast<double>(WeightBytesPerRank(model, Mesh())) + (twice ? whole.embedding : 0.0);
      EXPECT_NEAR(static_cast<double>(bytes), want, stages);  // each stage rounds to bytes
    }
  }
}

// The caches of the stages together have the rows of the whole model.
TEST(StageConfig, StagesHaveTheCachesOfTheirLayers) {
  const ModelConfig model = LoadModelConfig(Fixture(kMixedLayers));
  const size_t whole = KvStorage::BytesPerToken(model, Mesh(), DType::kBF16);
  std::vector<size_t> of_stages;
  size_t sum = 0;
  for (const schedule::LayerRange& range : SplitLayers(model, 2)) {
    const ModelConfig stage = StageConfigOf(model, range);
    of_stages.push_back(KvStorage::BytesPerToken(stage, Mesh(), DType::kBF16));
    sum += of_stages.back();
    for (int64_t i = 0; i < stage.num_layers(); ++i)
      EXPECT_EQ(stage.kv_heads(i), model.kv_heads(range.begin + i));
  }
  EXPECT_EQ(sum, whole);
  EXPECT_NE(of_stages[0], of_stages[1]);
}

TEST(StageConfig, WeightsOfAStageAreThoseOfItsLayers) {
  const ModelConfig model = LoadModelConfig(Fixture("deepseek_v3"));
  const ModelWeights whole = LoadWeights(Fixture("deepseek_v3"), model, Mesh(), {});
  for (const schedule::LayerRange& range : SplitLayers(model, 3)) {
    const ModelConfig stage = StageConfigOf(model, range);
    const ModelWeights own = LoadWeights(Fixture("deepseek_v3"), stage, Mesh(), {});
    EXPECT_EQ(stage.has_moe(), range.begin > 0);  // the first layer is dense
    EXPECT_EQ(own.embedding.defined(), range.has_embedding);
    EXPECT_EQ(own.head.defined(), range.has_head);
    EXPECT_EQ(own.final_norm.defined(), range.has_head);
    ASSERT_EQ(std::ssize(own.layers), range.size());
    const Tensor& norm = own.layers[0].input_norm;
    const Tensor& want = whole.layers[range.begin].input_norm;
    EXPECT_TRUE(std::ranges::equal(norm.span<float>(), want.span<float>()));
  }
}

}  // namespace
}  // namespace switchyard
