#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "server/front/token_text.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

std::unique_ptr<Tokenizer> Fixture(const std::string& name) {
  return Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/" + name + "/tokenizer.json");
}

// The character index of each byte, and one more entry for the end of the text.
std::vector<int64_t> CharacterOfByte(const std::string& bytes) {
  std::vector<int64_t> characters;
  int64_t character = 0;
  for (size_t at = 0; at < bytes.size(); ++character) {
    const size_t length = ScanUtf8(bytes, at).length;
    characters.insert(characters.end(), length, character);
    at += length;
  }
  characters.push_back(character);
  return characters;
}

TEST(TokenText, PartsOfCharactersHaveTheirBytes) {
  const auto byte_level = Fixture("qwen3_moe");
  for (const char* text : {"\U0001F9D1", "专", "é"}) {
    std::string joined;
    for (const int32_t id : byte_level->Encode(text, false)) joined += TokenBytes(*byte_level, id);
    EXPECT_EQ(joined, text);
  }
  const std::vector<int32_t> parts = byte_level->Encode("\U0001F9D1", false);
  ASSERT_GT(parts.size(), 1u);
  EXPECT_EQ(TokenBytes(*byte_level, parts[0])[0], '\xF0');
  EXPECT_EQ(TokenLabel(*byte_level, parts[0]).substr(0, 4), "\\xf0");

  const auto fallback = Fixture("mixtral");
  const int32_t byte = fallback->TokenToId("<0xE4>").value();
  EXPECT_EQ(TokenBytes(*fallback, byte), "\xE4");
  EXPECT_EQ(TokenLabel(*fallback, byte), "\\xe4");
  EXPECT_EQ(TokenBytes(*fallback, fallback->TokenToId("<0x0A>").value()), "\n");
}

// Compares 200 streams of random ids, with special tokens and parts of characters, with the offsets
// in the complete text.
TEST(TokenOffsets, EqualWhatTheWholeTextSays) {
  const auto tokenizer = Fixture("qwen3_moe");
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const bool skip = round % 2 == 0;
    std::vector<int32_t> ids(1 + random() % 40);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % static_cast<unsigned>(tokenizer->VocabSize()));
    std::string whole;
    std::vector<size_t> begins;
    for (const int32_t id : ids) {
      begins.push_back(whole.size());
      if (!(skip && tokenizer->IsSpecial(id))) whole += TokenBytes(*tokenizer, id);
    }
    const std::vector<int64_t> characters = CharacterOfByte(whole);
    IncrementalDetokenizer detokenizer(*tokenizer, skip);
    TokenOffsets offsets;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool shown = !(skip && tokenizer->IsSpecial(ids[i]));
      const std::string bytes = shown ? TokenBytes(*tokenizer, ids[i]) : "";
      if (!bytes.empty()) {
        ASSERT_EQ(offsets.Begin(bytes), characters[begins[i]]) << "round " << round << " at " << i;
      }
      offsets.Push(bytes, detokenizer.Push({&ids[i], 1}));
    }
  }
}

// The detokenizer of SentencePiece strips the first space and holds back runs of byte tokens.
// Offsets must agree with the text that it returns.
TEST(TokenOffsets, FollowTheTextOfByteFallback) {
  const auto tokenizer = Fixture("mixtral");
  std::vector<int32_t> ids = tokenizer->Encode("the", false);
  const size_t first = ids.size();
  for (const char* token : {"<0xE4>", "<0xB8>", "<0x93>", "<0xE5>", "<0xAE>", "<0xB6>", "▁the"})
    ids.push_back(tokenizer->TokenToId(token).value());
  IncrementalDetokenizer detokenizer(*tokenizer, true);
  TokenOffsets offsets;
  std::vector<int64_t> got;
  for (const int32_t id : ids) {
    const std::string bytes = TokenBytes(*tokenizer, id);
    got.push_back(offsets.Begin(bytes));
    offsets.Push(bytes, detokenizer.Push({&id, 1}));
  }
  EXPECT_EQ(tokenizer->Decode(ids, true), "the专家 the");
  EXPECT_EQ(std::vector<int64_t>(got.begin() + static_cast<ptrdiff_t>(first), got.end()),
            (std::vector<int64_t>{3, 3, 3, 4, 4, 4, 5}));
}

}  // namespace
}  // namespace switchyard
