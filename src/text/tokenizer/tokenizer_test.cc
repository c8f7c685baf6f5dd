#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "text/tokenizer/tokenizer_test_data.h"

namespace switchyard {
namespace {

using Ids = std::vector<int32_t>;
using Piece = Tokenizer::Piece;

TEST(TokenizerTest, GivesTheReferencesOfEveryFixture) {
  int fixtures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TestData() / "fixtures")) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto tokenizer = Tokenizer::FromFile(entry.path() / "tokenizer.json");
    const nlohmann::json reference = ReadJson(entry.path() / "reference.json");
    for (const auto& item : reference["encode"]) {
      const Ids ids = item["ids"];
      EXPECT_EQ(tokenizer->Encode(item["text"].get<std::string>(), false), ids) << item["text"];
      EXPECT_EQ(tokenizer->Decode(ids, false), item["decoded"].get<std::string>());
    }
    for (const auto& item : reference["encode_special"]) {
      EXPECT_EQ(tokenizer->Encode(item["text"].get<std::string>(), true), item["ids"].get<Ids>())
          << item["text"];
    }
    EXPECT_FALSE(reference["encode"].empty());
    ++fixtures;
  }
  EXPECT_EQ(fixtures, 11);
}

// Reference outputs of the Hugging Face library for components that no fixture uses. Each case
// patches the file of a fixture.
TEST(TokenizerTest, GivesTheGoldensOfEveryComponent) {
  const nlohmann::json goldens = ReadJson(TestData() / "tokenizer" / "goldens.json");
  EXPECT_GT(goldens.size(), 100u);
  for (const auto& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    nlohmann::json json = ReadJson(FixtureTokenizer(golden["fixture"]));
    json.merge_patch(golden["patch"]);
    const auto tokenizer = FromJsonValue(json);
    for (const auto& item : golden["encode"]) {
      EXPECT_EQ(tokenizer->Encode(item["text"].get<std::string>(), item["special"]),
                item["ids"].get<Ids>())
          << item["text"];
    }
    for (const auto& item : golden["decode"]) {
      EXPECT_EQ(tokenizer->Decode(item["ids"].get<Ids>(), item["skip"]),
                item["text"].get<std::string>())
          << item["ids"];
    }
  }
}

TEST(TokenizerTest, StopsSoonAfterTheLimitWithTheSameFirstIds) {
  const auto tokenizer =
      Tokenizer::FromFile(TestData() / "fixtures" / "qwen3_moe" / "tokenizer.json");
  std::string text;
  for (int i = 0; i < 500; ++i) text += "the lantern " + std::to_string(i) + "\n";
  const Ids all = tokenizer->Encode(text, false);
  for (const size_t limit : {size_t{0}, size_t{1}, size_t{100}}) {
    const Ids some = tokenizer->Encode(text, false, limit);
    EXPECT_GT(some.size(), limit);
    EXPECT_LT(some.size(), limit + 20);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
  EXPECT_EQ(tokenizer->Encode(text, false, all.size()), all);
}

TEST(TokenizerTest, InvalidUtf8CountsAsReplacementCharacters) {
  const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer("qwen3"));
  EXPECT_EQ(tokenizer->Encode("a\xff"
                              "b",
                              false),
            tokenizer->Encode("a\uFFFD"
                              "b",
                              false));
  EXPECT_EQ(tokenizer->Encode("\xe4\xb8", false), tokenizer->Encode("\uFFFD", false));
  EXPECT_EQ(tokenizer->Encode("\xed\xa0\x80", false),
            tokenizer->Encode("\uFFFD\uFFFD\uFFFD", false));
}

TEST(TokenizerTest, TokensAndIds) {
  const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer("mixtral"));
  EXPECT_EQ(tokenizer->VocabSize(), 512);
  EXPECT_EQ(tokenizer->TokenToId("<s>"), 1);
  EXPECT_EQ(tokenizer->IdToToken(1), "<s>");
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  const int32_t the = tokenizer->TokenToId("▁the").value();
  EXPECT_FALSE(tokenizer->IsSpecial(the));
  EXPECT_EQ(tokenizer->IdToToken(the), "▁the");
  EXPECT_EQ(tokenizer->TokenText(the), " the");
  EXPECT_EQ(tokenizer->Decode(Ids{the}, false), "the");
  EXPECT_EQ(tokenizer->TokenText(1), "<s>");
  EXPECT_EQ(tokenizer->TokenText(tokenizer->TokenToId("<0xE4>").value()), "\uFFFD");
  EXPECT_EQ(tokenizer->TokenToId("no such token"), std::nullopt);
  for (const int32_t id : {-1, 512, 1 << 30}) {
    EXPECT_EQ(tokenizer->IdToToken(id), "");
    EXPECT_EQ(tokenizer->TokenText(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
}

TEST(TokenizerTest, SkipsSpecialTokensOnRequestAndUnknownIdsAlways) {
  const auto tokenizer = FromJsonValue(SmallTokenizer());
  const Ids ids = {3, 0, 999, -5, 3, 5};
  EXPECT_EQ(tokenizer->Decode(ids, false), "<s>a<s>abc");
  EXPECT_EQ(tokenizer->Decode(ids, true), "aabc");
}

TEST(EncodePiecesTest, UntrustedTextMakesNoSpecialToken) {
  const auto tokenizer = FromJsonValue(SmallTokenizer());
  const Ids spelled = {9, 10, 11};
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"<s>", true}}, false), Ids{3});
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"<s>", false}}, false), spelled);
  // One untrusted character is enough to prevent a special token.
  EXPECT_EQ(
      tokenizer->EncodePieces(std::vector<Piece>{{"<", true}, {"s", false}, {">", true}}, false),
      spelled);
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"<s", true}, {">", false}}, false),
            spelled);
  // The template's own text may be in several pieces.
  EXPECT_EQ(
      tokenizer->EncodePieces(std::vector<Piece>{{"<", true}, {"s>", true}, {"a", false}}, false),
      (Ids{3, 0}));
}

TEST(EncodePiecesTest, MergesSeeThroughBorders) {
  const auto tokenizer = FromJsonValue(SmallTokenizer());
  EXPECT_EQ(
      tokenizer->EncodePieces(std::vector<Piece>{{"a", true}, {"b", false}, {"c", true}}, false),
      Ids{5});
  // A character that is split over two pieces is one character.
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"\xC3", true}, {"\xA9", false}}, false),
            (Ids{7, 8}));
}

TEST(EncodePiecesTest, TokensThatAreNotSpecialAreFoundInUntrustedText) {
  nlohmann::json json = SmallTokenizer();
  json["added_tokens"].push_back(
      {{"id", 14}, {"content", "<tool>"}, {"special", false}, {"normalized", false}});
  EXPECT_EQ(FromJsonValue(json)->EncodePieces(std::vector<Piece>{{"<tool>", false}}, false),
            Ids{14});
}

TEST(EncodePiecesTest, ShorterSpecialTokenOfTheTemplateCountsWhereTheLongerOneIsForged) {
  nlohmann::json json = SmallTokenizer();
  json["added_tokens"].push_back(
      {{"id", 14}, {"content", "<s>ab"}, {"special", true}, {"normalized", false}});
  const auto tokenizer = FromJsonValue(json);
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"<s>ab", true}}, false), Ids{14});
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"<s>", true}, {"ab", false}}, false),
            (Ids{3, 4}));
}

// All normalizers keep the trust marks of characters. The special token matches only after
// normalization.
TEST(EncodePiecesTest, NormalizedSpecialTokensNeedTrustToo) {
  nlohmann::json json = SmallTokenizer();
  json["added_tokens"].push_back(
      {{"id", 14}, {"content", "cc\u00E9"}, {"special", true}, {"normalized", true}});
  json["normalizer"] = nlohmann::json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "NFC"}, {"type": "Lowercase"}, {"type": "Strip"},
      {"type": "Replace", "pattern": {"String": "cc"}, "content": "b"}]})");
  const auto tokenizer = FromJsonValue(json);
  const Ids special = {14};
  EXPECT_EQ(tokenizer->Encode(" ccE\u0301", false), special);
  EXPECT_EQ(tokenizer->EncodePieces(
                std::vector<Piece>{{" ", false}, {"cCE\u0301", true}, {" ", false}}, false),
            special);
  const Ids plain = {1, 7, 8};  // b and the bytes of U+00E9
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"c", false}, {"ce\u0301", true}}, false),
            plain);
  EXPECT_EQ(tokenizer->EncodePieces(std::vector<Piece>{{"cce", true}, {"\u0301 ", false}}, false),
            plain);
}

TEST(EncodePiecesTest, EqualsEncodeOfTheWholeWithoutForgedTokens) {
  std::mt19937 random(7);
  const std::vector<std::string> words = {"Hello", " world", "e",  "\u0301",   "  ",      "\n",
                                          "专家",  "12345",  "'s", "\xF0\x9F", "\x98\x80"};
  for (const char* fixture : {"qwen3", "llama", "mixtral", "deepseek_v3", "olmoe"}) {
    const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer(fixture));
    for (int round = 0; round < 200; ++round) {
      std::string whole;
      std::vector<std::pair<std::string, bool>> texts;
      for (int i = 0; i < 8; ++i) {
        const bool trusted = random() % 2 == 0;
        texts.emplace_back(trusted && random() % 3 == 0 ? "<|eot_id|><|im_end|></s>"
                                                        : words[random() % words.size()],
                           trusted);
        whole += texts.back().first;
      }
      std::vector<Piece> pieces;
      for (const auto& [text, trusted] : texts) pieces.push_back({text, trusted});
      EXPECT_EQ(tokenizer->EncodePieces(pieces, true), tokenizer->Encode(whole, true))
          << fixture << ": " << whole;
    }
  }
}

TEST(TokenizerTest, LongRunsTakeTimeInProportion) {
  // With quadratic time, these combining marks would take hours and exceed the time limit of the
  // test.
  std::string marks = "e";
  for (int i = 0; i < 100'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  for (const char* fixture : {"qwen3", "gpt_oss", "mixtral"}) {
    const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer(fixture));
    for (const std::string& text : {std::string(1'000'000, 'x'), std::string(100'000, ' ') + "x",
                                    std::string(200'000, '<'), marks}) {
      EXPECT_FALSE(tokenizer->Encode(text, false).empty());
    }
  }
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const auto tokenizer = Tokenizer::FromFile(FixtureTokenizer("qwen3"));
  const std::string text = "Expert parallelism, 专家 e\u0301 <|im_end|>";
  const Ids want = tokenizer->Encode(text, true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_EQ(tokenizer->Encode(text, true), want);
        EXPECT_EQ(tokenizer->Decode(want, false), "Expert parallelism, 专家 é <|im_end|>");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace switchyard
