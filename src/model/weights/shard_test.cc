#include "model/weights/shard.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace switchyard {
namespace {

using Parts = std::vector<std::pair<int64_t, int64_t>>;

template <typename F>
Parts OfRanks(const MeshShape& shape, const F& range) {
  Parts parts;
  for (int rank = 0; rank < shape.tp; ++rank) {
    const Range r = range(Mesh(shape, rank));
    parts.emplace_back(r.begin, r.end);
  }
  return parts;
}

// Two groups of two ranks: each group holds all attention weights.
TEST(Shard, AttentionIsSplitOverTheAttentionGroup) {
  const MeshShape shape{.tp = 4, .ep = 4, .dp = 2};
  ModelConfig config;
  config.attention = {.heads = 8, .kv_heads = 2};
  config.layers = {{}, {.kv_heads = 1}, {.kv_heads = 4}};
  const auto of_layer = [&](int64_t layer) {
    return OfRanks(shape, [&](const Mesh& mesh) { return KvHeads(config, layer, mesh); });
  };
  EXPECT_EQ(OfRanks(shape, [&](const Mesh& mesh) { return QueryHeads(config.attention, mesh); }),
            (Parts{{0, 4}, {4, 8}, {0, 4}, {4, 8}}));
  EXPECT_EQ(of_layer(0), (Parts{{0, 1}, {1, 2}, {0, 1}, {1, 2}}));
  EXPECT_EQ(of_layer(1), (Parts{{0, 1}, {0, 1}, {0, 1}, {0, 1}}));
  EXPECT_EQ(of_layer(2), (Parts{{0, 2}, {2, 4}, {0, 2}, {2, 4}}));
  EXPECT_EQ(MostKvHeads(config, Mesh(shape, 3)), 2);
}

TEST(Shard, TheRanksFitTheKvHeadsOfEachLayer) {
  ModelConfig config;
  config.vocab_size = 8;
  config.attention = {.heads = 12, .kv_heads = 2};
  config.intermediate = 8;
  config.layers = {{}, {.kv_heads = 3}};
  const auto error = [&](int tp) -> std::string {
    try {
      CheckSplits(config, Mesh({.tp = tp}, 0), false);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error(1), "");
  EXPECT_EQ(error(6), "");
  EXPECT_EQ(error(2),
            "--tp 2 neither divides the number of KV heads of layer 1 (3) nor is a multiple of it; "
            "want a divisor or a multiple");
  EXPECT_EQ(error(3),
            "--tp 3 neither divides num_key_value_heads 2 nor is a multiple of it; want a divisor "
            "or a multiple");
}

TEST(Shard, TheVocabularyIsSplitWhereItIsUsed) {
  MeshShape shape{.tp = 4, .ep = 4, .dp = 2};
  const auto embedding = [](const Mesh& mesh) { return EmbeddingRows(10, mesh); };
  const auto head = [](const Mesh& mesh) { return HeadRows(10, mesh); };
  const Parts by_group = {{0, 5}, {5, 10}, {0, 5}, {5, 10}};
  EXPECT_EQ(OfRanks(shape, embedding), by_group);
  EXPECT_EQ(OfRanks(shape, head), (Parts{{0, 3}, {3, 6}, {6, 9}, {9, 10}}));
  shape.dense_tp = 1;
  EXPECT_EQ(OfRanks(shape, embedding), by_group);
  EXPECT_EQ(OfRanks(shape, head), by_group);
}

TEST(Shard, SizesThatDoNotSplitAreRefusedByFlag) {
  ModelConfig config;
  config.attention = {.heads = 4, .kv_heads = 4};
  config.intermediate = 6;
  config.layers.resize(1);  // a dense one
  const auto message = [&](const MeshShape& shape) {
    try {
      CheckSplits(config, Mesh(shape, 0), /*replicated_shared_expert=*/false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.tp = 4}), "");
  EXPECT_EQ(message({.tp = 8}), "--tp 8 does not divide num_attention_heads 4; want a divisor");
  EXPECT_EQ(message({.tp = 6, .dp = 2}),
            "--tp 6 over --dp-size 2 = 3 does not divide num_attention_heads 4; want a divisor");
  EXPECT_EQ(message({.tp = 8, .dp = 2}),
            "--tp 8 is more than intermediate_size 6; want at most this size");
  EXPECT_EQ(message({.tp = 8, .dp = 2, .dense_tp = 1}), "");
}

}  // namespace
}  // namespace switchyard
