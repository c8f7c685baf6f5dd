#include "text/tokenizer/bpe_model.h"

#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer/tokenizer_test_data.h"

namespace switchyard {
namespace {

using Ids = std::vector<int32_t>;

Ids Encode(const nlohmann::json& model, std::string_view word) {
  const BpeModel bpe(JsonNode(model, "tokenizer.json: model"));
  BpeModel::Scratch scratch;
  Ids ids;
  bpe.Encode(word, &scratch, &ids);
  return ids;
}

nlohmann::json SmallModel() { return SmallTokenizer()["model"]; }

TEST(BpeModelTest, MergesByRankThenLeftToRight) {
  EXPECT_EQ(Encode(SmallModel(), "abcab"), (Ids{5, 4}));
  nlohmann::json model = SmallModel();
  model["vocab"]["bc"] = 20;
  model["vocab"]["aa"] = 21;
  model["merges"] = {"b c", "a b", "a a"};
  EXPECT_EQ(Encode(model, "abc"), (Ids{0, 20}));
  EXPECT_EQ(Encode(model, "aaa"), (Ids{21, 0}));
}

TEST(BpeModelTest, IgnoreMergesTakesAWholeWordOfTheVocabulary) {
  nlohmann::json model = SmallModel();
  EXPECT_EQ(Encode(model, "abab"), (Ids{4, 4}));
  model["ignore_merges"] = true;
  EXPECT_EQ(Encode(model, "abab"), Ids{12});
  EXPECT_EQ(Encode(model, "ababa"), (Ids{4, 4, 0}));
}

TEST(BpeModelTest, UnknownCharacters) {
  nlohmann::json model = SmallModel();
  EXPECT_EQ(Encode(model, "a\u00E9z"),
            (Ids{0, 7, 8, 6}));  // byte tokens if all exist, else the unknown token
  EXPECT_EQ(Encode(model, "zya"), (Ids{6, 6, 0}));
  model["fuse_unk"] = true;
  EXPECT_EQ(Encode(model, "zya"), (Ids{6, 0}));
  model["byte_fallback"] = false;
  EXPECT_EQ(Encode(model, "a\u00E9z"), (Ids{0, 6}));
  model["unk_token"] = nullptr;
  EXPECT_EQ(Encode(model, "za\u00E9"), Ids{0});
}

// Compares the implementation with a heap to the definition: merge the best pair, the leftmost
// first, until no pair is left.
TEST(BpeModelTest, EqualsTheDefinitionOnRandomMerges) {
  std::mt19937 random(9);
  for (int round = 0; round < 50; ++round) {
    nlohmann::json model = {{"vocab", {{"a", 0}, {"b", 1}, {"c", 2}}},
                            {"merges", nlohmann::json::array()}};
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (int i = 0; i < 12; ++i) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (model["vocab"].contains(left + right)) continue;
      model["vocab"][left + right] = tokens.size();
      tokens.push_back(left + right);
      model["merges"].push_back({left, right});
    }
    std::string word;
    for (int i = 0; i < 30; ++i) word += static_cast<char>('a' + random() % 3);

    std::vector<std::string> want;
    for (const char c : word) want.emplace_back(1, c);
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& merge : model["merges"]) {
        for (size_t i = 0; i + 1 < want.size() && !merged; ++i) {
          if (want[i] != merge[0] || want[i + 1] != merge[1]) continue;
          want[i] += want[i + 1];
          want.erase(want.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    Ids want_ids;
    for (const std::string& token : want) want_ids.push_back(model["vocab"][token]);
    EXPECT_EQ(Encode(model, word), want_ids) << word << ' ' << model;
  }
}

}  // namespace
}  // namespace switchyard
