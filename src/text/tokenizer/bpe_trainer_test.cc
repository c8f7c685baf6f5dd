#include "text/tokenizer/bpe_trainer.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "core/temporary_directory.h"
#include "core/testing.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> MergesOf(const LearnedBpe& bpe) {
  std::vector<std::string> out;
  for (const auto& [left, right] : bpe.merges)
    out.push_back(bpe.tokens[left] + "+" + bpe.tokens[right]);
  return out;
}

LearnedBpe Learn(const std::vector<std::string>& texts, const BpeTrainingOptions& options) {
  BpeTrainer trainer(ByteLevelPreTokenizer(kWordPattern));
  for (const std::string& text : texts) trainer.Add(text);
  return trainer.Learn(options);
}

// Counted by hand; Ġ is a space.
TEST(BpeTrainerTest, MergesTheMostFrequentPairFirst) {
  std::string text;
  const std::map<std::string, int> words = {
      {" hug", 10}, {" pug", 5}, {" pun", 12}, {" bun", 4}, {" hugs", 5}};
  for (const auto& [word, count] : words) {
    for (int i = 0; i < count; ++i) text += word;
  }
  const LearnedBpe bpe = Learn({text}, {.vocab_size = 256 + 1 + 6, .special_tokens = {"<end>"}});
  EXPECT_EQ(bpe.tokens.size(), 256u + 1 + 6);
  EXPECT_EQ(bpe.tokens[0], "<end>");
  EXPECT_EQ(bpe.tokens[1], "!");  // the letters in code point order
  // The counts of the merges: u+g 20, after which p+u has only 12; Ġ+p 17; u+n 16; h+ug 15; Ġ+hug
  // 15; Ġp+un 12. Ġ+h also has 15, but the tie goes to h+ug, because h has the smaller id.
  EXPECT_THAT(MergesOf(bpe), ElementsAre("u+g", "Ġ+p", "u+n", "h+ug", "Ġ+hug", "Ġp+un"));
}

TEST(BpeTrainerTest, OrderOfTextsDoesNotMatter) {
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) {
    texts.push_back("line " + std::to_string(i * 7919) + " of a text, " +
                    std::string(static_cast<size_t>(i % 7), 'z') + " zig zag\n");
  }
  const BpeTrainingOptions options{.vocab_size = 400, .special_tokens = {"<a>", "<b>"}};
  const LearnedBpe one = Learn(texts, options);
  std::reverse(texts.begin(), texts.end());
  const LearnedBpe other = Learn(texts, options);
  EXPECT_EQ(one.tokens, other.tokens);
  EXPECT_EQ(one.merges, other.merges);
}

TEST(BpeTrainerTest, BoundsHold) {
  const std::string text = "abcdefgh abcdefgh abcdefgh xyz";
  for (const std::string& token :
       Learn({text}, {.vocab_size = 1000, .max_token_bytes = 4}).tokens) {
    EXPECT_LE(BytesOfByteLevel(token).size(), 4u) << token;
  }
  // " xyz" occurs only once: none of its pairs is merged.
  const LearnedBpe rare = Learn({text}, {.vocab_size = 1000, .min_frequency = 2});
  EXPECT_LT(rare.tokens.size(), 1000u);
  EXPECT_EQ(std::ranges::count(rare.tokens, "xy"), 0);
  EXPECT_EQ(std::ranges::count(rare.tokens, "Ġabcdefgh"), 1);
  // Merges never produce a special token, however frequent its text.
  const LearnedBpe special =
      Learn({"ab ab ab ab"}, {.vocab_size = 1000, .special_tokens = {"ab", "Ġab"}});
  EXPECT_TRUE(special.merges.empty() || MergesOf(special) == std::vector<std::string>{"Ġ+a"});
  EXPECT_EQ(std::ranges::count(special.tokens, "ab"), 1);
}

TEST(BpeTrainerTest, WrongOptionsAreNamed) {
  EXPECT_THAT(ErrorOf([] { Learn({"a"}, {.vocab_size = 100}); }), HasSubstr("too small for"));
  EXPECT_THAT(ErrorOf([] {
                Learn({"a"}, {.special_tokens = {"<s>", "<s>"}});
              }),
              HasSubstr("<s> is given twice"));
  EXPECT_THAT(ErrorOf([] { Learn({"a"}, {.special_tokens = {""}}); }), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf([] { Learn({"a"}, {.special_tokens = {"é"}}); }),
              HasSubstr("single character"));
}

class TokenizerFilesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> WriteAndLoad(const TokenizerFileOptions& options) {
    const std::vector<std::string> special{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    WriteTokenizer(dir_,
                   Learn({"the cat and the dog and the bird\n\n", "user assistant"},
                         {.vocab_size = 300, .special_tokens = special}),
                   special, options);
    return Tokenizer::FromFile(dir_ / "tokenizer.json");
  }

  const TemporaryDirectory temporary_;
  fs::path dir_ = temporary_.path();
};

TEST_F(TokenizerFilesTest, EveryTextComesBack) {
  const auto tokenizer = WriteAndLoad({.eos = "<|im_end|>"});
  for (const char* text : {"the cat", "", " ", "  two\n\n three\t", "naïve 日本語 🙂 12345",
                           "don't", "\x01\x7f"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, true), false), text);
  }
  EXPECT_LE(tokenizer->Encode("the dog and the bird", false).size(), 12u);  // from 20 bytes
  EXPECT_EQ(tokenizer->Encode("<|im_end|>", false), std::vector<int32_t>{2});
  EXPECT_TRUE(tokenizer->IsSpecial(2));
}

TEST_F(TokenizerFilesTest, ChatTemplateAndBos) {
  const auto tokenizer = WriteAndLoad({.bos = "<|endoftext|>",
                                       .eos = "<|im_end|>",
                                       .chat_template = kDefaultChatTemplate,
                                       .max_length = 512});
  EXPECT_EQ(tokenizer->Encode("the", true)[0], 0);
  EXPECT_NE(tokenizer->Encode("the", false)[0], 0);
  ChatInput chat;
  chat.messages = {{{"role", "user"}, {"content", "the <|im_end|> cat"}}};
  const jinja::Rendered rendered = ChatTemplate::FromDirectory(dir_).Apply(chat);
  EXPECT_EQ(rendered.text,
            "<|im_start|>user\nthe <|im_end|> cat<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<int32_t> ids = EncodeRendered(*tokenizer, rendered);
  EXPECT_EQ(std::ranges::count(ids, 2), 1);  // user content stays text
  EXPECT_EQ(std::ranges::count(ids, 1), 2);
}

TEST_F(TokenizerFilesTest, ErrorsNameTokenAndFile) {
  EXPECT_THAT(ErrorOf([&] { WriteAndLoad({.eos = "</s>"}); }),
              HasSubstr("eos token </s> is not in the list of special tokens"));
  dir_ = "/proc/no/such";
  EXPECT_THAT(ErrorOf([&] { WriteAndLoad({}); }, ErrorKind::kResource), HasSubstr("/proc/no/such"));
}

}  // namespace
}  // namespace switchyard
