// Tokenizers in all file formats of checkpoints, compared with their reference libraries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/temporary_directory.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_test_data.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;
using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

// The same random strings as in tests/data/tokenizer/make_directories.py.
std::vector<std::string> Strings(const Json& fragments) {
  uint64_t state = 12345;
  const auto draw = [&](size_t below) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<size_t>((state >> 33) % below);
  };
  std::vector<std::string> strings(1000);
  for (std::string& text : strings) {
    // Random numbers are drawn in the order of the Python script: the count first.
    for (size_t left = 1 + draw(12); left > 0; --left)
      text += fragments[draw(fragments.size())].get<std::string>();
  }
  return strings;
}

std::string Digits(const Ids& ids) {
  Fnv1a hash;
  hash.AddBytes(ids.data(), ids.size() * sizeof(int32_t));
  return fmt::format("{:016x}", hash.value()).substr(0, 8);
}

TEST(TokenizerDirectoryTest, GivesTheIdsOfTheLibraries) {
  const fs::path dir = TestData() / "tokenizer" / "directories";
  const Json expected = ReadJson(dir / "expected.json");
  const std::vector<std::string> strings = Strings(expected["fragments"]);
  size_t compared = 0;
  for (const auto& [name, hashes] : expected["ids"].items()) {
    const auto tokenizer = Tokenizer::FromDirectory(dir / name);
    int wrong = 0;
    for (size_t i = 0; i < strings.size() && wrong < 5; ++i, ++compared) {
      const Ids ids = tokenizer->Encode(strings[i], true);
      const bool equal = Digits(ids) == hashes.get_ref<const std::string&>().substr(8 * i, 8);
      EXPECT_TRUE(equal) << name << ": '" << strings[i] << "' " << ::testing::PrintToString(ids);
      wrong += equal ? 0 : 1;
    }
  }
  EXPECT_GE(compared, 5000u);
}

// A model directory with a fixture's tokenizer.json.
class DirectoryFilesTest : public ::testing::Test {
 protected:
  DirectoryFilesTest() { Write("tokenizer.json", document_); }

  void Write(const std::string& name, const Json& json) { std::ofstream(dir_ / name) << json; }
  std::unique_ptr<Tokenizer> Load() const { return Tokenizer::FromDirectory(dir_); }
  Ids Encode(const std::string& text) const { return Load()->Encode(text, true); }
  std::string ErrorOfLoad() const {
    try {
      Load();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  static Json Token(const std::string& text, bool special = true) {
    return {{"content", text}, {"special", special}, {"normalized", false},
            {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
  }

  Json document_ = ReadJson(FixtureTokenizer("qwen3"));
  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(DirectoryFilesTest, AddedTokensDecoderAddsAndOverrides) {
  Write("tokenizer_config.json", {{"added_tokens_decoder",
                                   {{"513", Token("<b>", false)},
                                    {"512", Token("<a>")},
                                    {"511", Token("<|im_end|>", false)}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->TokenToId("<a>"), 512);
  EXPECT_EQ(tokenizer->TokenToId("<b>"), 513);
  EXPECT_TRUE(tokenizer->IsSpecial(512));
  EXPECT_FALSE(tokenizer->IsSpecial(513));
  EXPECT_FALSE(tokenizer->IsSpecial(511));
  EXPECT_EQ(tokenizer->Encode("<b><a>", false), (Ids{513, 512}));
}

TEST_F(DirectoryFilesTest, OlderFilesAddTokens) {
  Write("added_tokens.json", {{"<x>", 513}, {"<y>", 512}});
  Write("special_tokens_map.json", {{"bos_token", "<bos>"},
                                    {"pad_token", {{"content", "<pad>"}}},
                                    {"additional_special_tokens", {"<x>", "<z>"}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Encode("<y><x><bos><pad><z>", false), (Ids{512, 513, 514, 515, 516}));
  EXPECT_TRUE(tokenizer->IsSpecial(513));
  EXPECT_FALSE(tokenizer->IsSpecial(512));
  EXPECT_TRUE(tokenizer->IsSpecial(515));
}

TEST_F(DirectoryFilesTest, OlderFilesDoNotCountBesideAddedTokensDecoder) {
  Write("added_tokens.json", {{"<x>", 513}});
  Write("special_tokens_map.json", {{"bos_token", "<bos>"}});
  Write("tokenizer_config.json", {{"added_tokens_decoder", {{"512", Token("<q>")}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->TokenToId("<x>"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenToId("<bos>"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenToId("<q>"), 512);
}

TEST_F(DirectoryFilesTest, NamedTokensAreSpecial) {
  document_["added_tokens"].back()["special"] = false;
  Write("tokenizer.json", document_);
  Write("tokenizer_config.json", {{"eos_token", "<|im_end|>"},
                                  {"image_token", "<img>"},
                                  {"extra_special_tokens", {"<k>"}},
                                  {"pad_token", nullptr}});
  const auto tokenizer = Load();
  EXPECT_TRUE(tokenizer->IsSpecial(511));
  EXPECT_EQ(tokenizer->Encode("<img><k>", false), (Ids{512, 513}));
}

TEST_F(DirectoryFilesTest, NamedTokensHaveIds) {
  Write("special_tokens_map.json", {{"bos_token", "<|im_start|>"}});
  Write("tokenizer_config.json",
        {{"eos_token", {{"content", "<|im_end|>"}}}, {"pad_token", nullptr}});
  EXPECT_EQ(Load()->NamedToken("eos_token"), 511);
  EXPECT_EQ(Load()->NamedToken("bos_token"), 510);
  EXPECT_EQ(Load()->NamedToken("pad_token"), std::nullopt);
  EXPECT_EQ(Load()->NamedToken("unk_token"), std::nullopt);
  EXPECT_EQ(Tokenizer::FromFile(dir_ / "tokenizer.json")->NamedToken("eos_token"), std::nullopt);
  Write("special_tokens_map.json", {{"eos_token", "<|im_start|>"}});
  EXPECT_EQ(Load()->NamedToken("eos_token"), 510);
  Write("tokenizer_config.json",
        {{"eos_token", "<|im_end|>"}, {"added_tokens_decoder", {{"511", Token("<|im_end|>")}}}});
  EXPECT_EQ(Load()->NamedToken("eos_token"), 511);
}

// The tokenizer_config.json of this model names no token.
TEST(TokenizerDirectoryTest, SentencePieceModelsNameTokens) {
  const auto tokenizer =
      Tokenizer::FromDirectory(TestData() / "tokenizer" / "directories" / "spm_unigram_bytes");
  EXPECT_TRUE(tokenizer->TokenToId("</s>").has_value());
  EXPECT_EQ(tokenizer->NamedToken("eos_token"), tokenizer->TokenToId("</s>"));
  EXPECT_EQ(tokenizer->NamedToken("bos_token"), tokenizer->TokenToId("<s>"));
  EXPECT_EQ(tokenizer->NamedToken("pad_token"), std::nullopt);
}

TEST_F(DirectoryFilesTest, AddBosAndEosTokens) {
  const Json byte_level = {{"type", "ByteLevel"}};
  const auto encode = [&](Json config, const Json& processor = {{"type", "ByteLevel"}}) {
    document_["post_processor"] = processor;
    Write("tokenizer.json", document_);
    config.update({{"bos_token", "<|im_start|>"}, {"eos_token", "<|im_end|>"}});
    Write("tokenizer_config.json", config);
    return Encode("a");
  };
  const Json bos_first = ReadJson(FixtureTokenizer("deepseek_v3"))["post_processor"];
  const int32_t a = Load()->Encode("a", false)[0];
  EXPECT_EQ(encode({{"add_bos_token", true}, {"tokenizer_class", "LlamaTokenizerFast"}}),
            (Ids{510, a}));
  EXPECT_EQ(encode({{"add_bos_token", true}, {"add_eos_token", true}}), (Ids{510, a, 511}));
  EXPECT_EQ(encode({{"add_eos_token", true}, {"tokenizer_class", "GemmaTokenizer"}}),
            (Ids{a, 511}));
  EXPECT_EQ(encode({{"add_bos_token", false}}), (Ids{a}));
  EXPECT_EQ(encode({{"add_bos_token", true}}, nullptr), (Ids{510, a}));
  // The post-processor of the file is used, except with tokenizer classes that replace it.
  const Ids own = encode(Json::object(), bos_first);
  EXPECT_EQ(own.size(), 2u);
  EXPECT_EQ(encode({{"add_bos_token", true}}, bos_first), own);
  EXPECT_EQ(encode({{"add_bos_token", false}}, bos_first), own);
  EXPECT_EQ(encode({{"add_bos_token", false}, {"tokenizer_class", "LlamaTokenizer"}}, bos_first),
            (Ids{a}));
}

TEST_F(DirectoryFilesTest, ModelsWithoutATypeAreReadByTheirVocabulary) {
  const Ids expected = Encode("some text");
  document_["model"].erase("type");
  Write("tokenizer.json", document_);
  EXPECT_EQ(Encode("some text"), expected);
  document_["model"] = {
      {"unk_id", 0},
      {"vocab", Json::parse(R"([["?", 0], ["so", -1], ["me", -2.5], ["m", -1.5], [" ", -9]])")}};
  document_["pre_tokenizer"] = nullptr;
  document_["added_tokens"] = Json::array();
  document_["post_processor"] = nullptr;
  Write("tokenizer.json", document_);
  EXPECT_EQ(Encode("some xxm"), (Ids{1, 2, 4, 0, 3}));
}

TEST_F(DirectoryFilesTest, TiktokenAloneIsATokenizer) {
  fs::remove(dir_ / "tokenizer.json");
  EXPECT_FALSE(Tokenizer::HasFiles(dir_));
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tiktoken.model"));
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += Base64Of(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  std::ofstream(dir_ / "tiktoken.model") << ranks << Base64Of("ab") << " 256\n";
  Write("tokenizer_config.json",
        {{"added_tokens_decoder", {{"257", Token("[BOS]")}, {"260", Token("[EOS]")}}}});
  const auto tokenizer = Load();
  EXPECT_EQ(tokenizer->Encode("[BOS]abc[EOS]", false), (Ids{257, 256, 'c', 260}));
  EXPECT_EQ(tokenizer->TokenToId("<|reserved_token_258|>"), 258);
  EXPECT_EQ(tokenizer->Decode(Ids{256, 0xE4, 0xB8, 0xAD}, true), "ab中");
  std::ofstream(dir_ / "tiktoken.model") << "YQ== 0\nYQ= x\n";
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tiktoken.model, line 2"));
  fs::rename(dir_ / "tiktoken.model", dir_ / "tokenizer.model");  // the file name that Llama 3 uses
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tokenizer.model, line 2"));
}

TEST_F(DirectoryFilesTest, BrokenFilesAreNamed) {
  std::ofstream(dir_ / "tokenizer_config.json") << "{";
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tokenizer_config.json"));
  Write("tokenizer_config.json", {{"added_tokens_decoder", {{"x", Token("<a>")}}}});
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("added_tokens_decoder['x']"));
  Write("tokenizer_config.json", Json::object());
  Write("added_tokens.json", {{"<x>", "one"}});
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("added_tokens.json: '<x>'"));
  fs::remove(dir_ / "added_tokens.json");
  fs::remove(dir_ / "tokenizer.json");
  std::ofstream(dir_ / "tokenizer.model") << "no model";
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tokenizer.model"));
  std::ofstream(dir_ / "tokenizer.model") << "";
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("0 pieces"));
}

// Without O_NONBLOCK, opening a FIFO without a writer blocks.
TEST_F(DirectoryFilesTest, FilesThatAreNotRegularAreNamed) {
  for (const char* name :
       {"added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"}) {
    ASSERT_EQ(mkfifo((dir_ / name).c_str(), 0600), 0);
    EXPECT_THAT(ErrorOfLoad(), HasSubstr(std::string(name) + ": is a FIFO"));
    fs::remove(dir_ / name);
  }
  fs::remove(dir_ / "tokenizer.json");
  for (const char* name : {"tokenizer.model", "tiktoken.model", "tokenizer.json"}) {
    ASSERT_EQ(mkfifo((dir_ / name).c_str(), 0600), 0);
    EXPECT_THAT(ErrorOfLoad(), HasSubstr(std::string(name) + ": is a FIFO"));
  }
}

TEST_F(DirectoryFilesTest, VocabulariesOverTheLimitsAreNamed) {
  fs::remove(dir_ / "tokenizer.json");
  std::ofstream(dir_ / "tiktoken.model") << "YQ== 0\n"
                                         << Base64Of(std::string(5000, 'a')) << " 1\n";
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("tiktoken.model: has a token of 5000 bytes, at most 4096"));
  std::ofstream(dir_ / "tiktoken.model") << "YQ== 0\n";
  Write("tokenizer_config.json", {{"added_tokens_decoder", {{"4000000", Token("<a>")}}}});
  EXPECT_THAT(ErrorOfLoad(), HasSubstr("has the id 4000000, but the file's ids end at 0"));
}

TEST(Base64Test, RoundTrips) {
  for (const std::string text : {"", "a", "ab", "abc", "abcd", "\xff\xfe\x01"})
    EXPECT_EQ(BytesOfBase64(Base64Of(text)), text);
  EXPECT_EQ(Base64Of("ab"), "YWI=");
  EXPECT_EQ(BytesOfBase64("a"), std::nullopt);
  EXPECT_EQ(BytesOfBase64("a*=="), std::nullopt);
}

}  // namespace
}  // namespace switchyard
