// Errors for an invalid tokenizer.json name the file and the key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"
#include "text/tokenizer/bpe_model.h"
#include "text/tokenizer/tokenizer_test_data.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOfText(const std::string& text) {
  try {
    Tokenizer::FromJson(text, "dir/tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The error of loading the small tokenizer's JSON after `change` has modified it.
std::string ErrorAfter(const std::function<void(Json&)>& change) {
  Json json = SmallTokenizer();
  change(json);
  return ErrorOfText(json.dump());
}

// The error of loading the small tokenizer with the component `key` replaced by this JSON text.
std::string ErrorWith(const std::string& key, const std::string& component) {
  return ErrorAfter([&](Json& json) { json[key] = Json::parse(component); });
}

TEST(TokenizerErrorsTest, MissingFile) {
  try {
    Tokenizer::FromFile("/nonexistent/tokenizer.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/tokenizer.json"));
  }
}

TEST(TokenizerErrorsTest, NoJsonOrNoObject) {
  EXPECT_THAT(ErrorOfText(""), HasSubstr("dir/tokenizer.json"));
  EXPECT_THAT(ErrorOfText("{\"model\": "), HasSubstr("dir/tokenizer.json: not JSON"));
  EXPECT_THAT(ErrorOfText("{\"model\": \"\xff\"}"), HasSubstr("dir/tokenizer.json: not JSON"));
  EXPECT_THAT(ErrorOfText("[]"), HasSubstr("dir/tokenizer.json is array, want an object"));
  EXPECT_THAT(ErrorOfText("{}"), HasSubstr("model is missing"));
}

// A tokenizer.json with a list of `values` numbers.
std::string ManyValues(size_t values) {
  std::string text = R"({"list": [0)";
  for (size_t i = 1; i < values; ++i) text += ",0";
  return text + "]}";
}

TEST(TokenizerErrorsTest, TooManyValuesOrLevels) {
  EXPECT_THAT(ErrorOfText(ManyValues(100)), HasSubstr("model is missing"));
  EXPECT_THAT(ErrorOfText(ManyValues(5'000'000)),
              HasSubstr("dir/tokenizer.json: has more than 5000000 JSON values"));
  EXPECT_THAT(ErrorOfText(std::string(1'000'000, '[')),
              HasSubstr("dir/tokenizer.json: nests deeper than 64 levels"));
}

TEST(TokenizerErrorsTest, TooManyDerivedMerges) {
  const auto error = [](const std::function<void(MergeBudget&)>& use) {
    const std::string file = "dir/tokenizer.model";
    MergeBudget budget(file);
    try {
      use(budget);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error([](MergeBudget& budget) { budget.AddToken(4097); }),
              HasSubstr("dir/tokenizer.model: has a token of 4097 bytes, at most 4096"));
  const auto tokens = [&](int count) {
    return error([&](MergeBudget& budget) {
      for (int i = 0; i < count; ++i) budget.AddToken(4096);
    });
  };
  EXPECT_EQ(tokens(256), "no error");
  EXPECT_THAT(tokens(257), HasSubstr("dir/tokenizer.model: the tokens are too long in total"));
  const auto merges = [&](int count) {
    return error([&](MergeBudget& budget) {
      for (int i = 0; i < count; ++i) budget.AddMerge();
    });
  };
  EXPECT_EQ(merges(1 << 21), "no error");
  EXPECT_THAT(merges((1 << 21) + 1), HasSubstr("the tokens have more than 2097152 merges"));
}

TEST(TokenizerErrorsTest, TokensThatAreTooLong) {
  // Json::array: nlohmann/json reads a list of one pair as an object.
  const Json unigram = {{"type", "Unigram"},
                        {"vocab", Json::array({Json::array({std::string(1024, 'a'), -1.0})})}};
  EXPECT_EQ(ErrorAfter([&](Json& json) { json = {{"model", unigram}}; }), "no error");
  EXPECT_THAT(ErrorAfter([&](Json& json) {
                json = {{"model", unigram}};
                json["model"]["vocab"][0][0] = std::string(1025, 'a');
              }),
              HasSubstr("dir/tokenizer.json: model.vocab: a token of 1025 bytes, at most 1024"));
  EXPECT_THAT(
      ErrorAfter([](Json& json) { json["added_tokens"][0]["content"] = std::string(2000, 'x'); }),
      HasSubstr("added_tokens[0]: a token of 2000 bytes"));
}

TEST(TokenizerErrorsTest, TooManyComponents) {
  const auto steps = [](const char* component, const char* key, const Json& step) {
    return ErrorAfter([&](Json& json) {
      json[component] = {{"type", "Sequence"}, {key, Json::array()}};
      for (int i = 0; i < 257; ++i) json[component][key].push_back(step);
    });
  };
  const std::string message = "has 257 components, at most 256";
  EXPECT_THAT(steps("normalizer", "normalizers", {{"type", "Lowercase"}}), HasSubstr(message));
  EXPECT_THAT(steps("pre_tokenizer", "pretokenizers", {{"type", "Whitespace"}}),
              HasSubstr(message));
  EXPECT_THAT(steps("post_processor", "processors", {{"type", "ByteLevel"}}), HasSubstr(message));
  EXPECT_THAT(steps("decoder", "decoders", {{"type", "Fuse"}}), HasSubstr(message));
  EXPECT_THAT(ErrorAfter([](Json& json) {
                json["post_processor"] = {{"type", "TemplateProcessing"},
                                          {"single", Json::array()},
                                          {"special_tokens", {{"<s>", {{"ids", {3}}}}}}};
                for (int i = 0; i < 1025; ++i)
                  json["post_processor"]["single"].push_back({{"SpecialToken", {{"id", "<s>"}}}});
              }),
              HasSubstr("adds more than 1024 ids"));
}

TEST(TokenizerErrorsTest, WrongTypesNameTheirKey) {
  EXPECT_THAT(ErrorAfter([](Json& json) { json["version"] = "2.0"; }),
              HasSubstr("version is '2.0'"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["added_tokens"] = 3; }),
              HasSubstr("added_tokens is number, want an array"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["added_tokens"][0]["id"] = "3"; }),
              HasSubstr("added_tokens[0].id is string, want an integer"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["added_tokens"][0].erase("content"); }),
              HasSubstr("added_tokens[0].content is missing"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["vocab"] = Json::array(); }),
              HasSubstr("model.vocab is array, want an object"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"].erase("merges"); }),
              HasSubstr("model.merges is missing"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["byte_fallback"] = 1; }),
              HasSubstr("model.byte_fallback is number, want true or false"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["decoder"] = "Fuse"; }),
              HasSubstr("decoder is string, want an object"));
}

TEST(TokenizerErrorsTest, IdsOutOfRange) {
  for (const Json& id : {Json(-1), Json(1 << 22), Json(~uint64_t{0}), Json(INT64_MIN)}) {
    EXPECT_THAT(ErrorAfter([&](Json& json) { json["model"]["vocab"]["a"] = id; }),
                HasSubstr("model.vocab['a'] is " + id.dump()));
    EXPECT_THAT(ErrorAfter([&](Json& json) { json["added_tokens"][0]["id"] = id; }),
                HasSubstr("added_tokens[0].id is " + id.dump()));
  }
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["vocab"]["a"] = 1.5; }),
              HasSubstr("want an integer"));
}

TEST(TokenizerErrorsTest, IdsAndTokensGivenTwice) {
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["vocab"]["z"] = 0; }),
              HasSubstr("both have the id 0"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["added_tokens"][0]["id"] = 0; }),
              HasSubstr("belongs to 'a' in model.vocab"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["vocab"]["<s>"] = 14; }),
              HasSubstr("'<s>' has the id 3 here and 14 in model.vocab"));
  EXPECT_THAT(
      ErrorAfter([](Json& json) { json["added_tokens"].push_back(json["added_tokens"][0]); }),
      HasSubstr("added_tokens[1]"));
}

TEST(TokenizerErrorsTest, Merges) {
  const auto error = [](const Json& merge) {
    return ErrorAfter([&](Json& json) { json["model"]["merges"] = Json::array({merge}); });
  };
  EXPECT_THAT(error("a z"), HasSubstr("model.merges[0]: 'z' is not in model.vocab"));
  EXPECT_THAT(error({"b", "a"}), HasSubstr("model.merges[0]: 'ba' is not in model.vocab"));
  for (const Json& merge :
       {Json("ab"), Json("a b c"), Json({"a"}), Json({"a", 1}), Json(7), Json(nullptr)}) {
    EXPECT_THAT(error(merge), HasSubstr("model.merges[0]: want a merge")) << merge;
  }
}

TEST(TokenizerErrorsTest, ModelOptionsThatAreNotImplemented) {
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["type"] = "WordPiece"; }),
              HasSubstr("model.type 'WordPiece' is not supported"));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    EXPECT_THAT(ErrorAfter([&](Json& json) { json["model"][key] = "##"; }),
                HasSubstr(std::string("model.") + key + " is set"));
    EXPECT_EQ(ErrorAfter([&](Json& json) { json["model"][key] = ""; }), "no error");
  }
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["dropout"] = 0.1; }),
              HasSubstr("model.dropout is set"));
  EXPECT_THAT(ErrorAfter([](Json& json) { json["model"]["unk_token"] = "<unk>"; }),
              HasSubstr("model.unk_token '<unk>' is not in model.vocab"));
}

TEST(TokenizerErrorsTest, UnknownComponentTypesAreNamed) {
  EXPECT_THAT(ErrorWith("normalizer", R"({"type": "BertNormalizer"})"),
              AllOf(HasSubstr("dir/tokenizer.json"),
                    HasSubstr("normalizer type 'BertNormalizer' is not supported")));
  EXPECT_THAT(ErrorWith("pre_tokenizer",
                        R"({"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"}]})"),
              HasSubstr("pre_tokenizer.pretokenizers[0]: pre_tokenizer type 'UnicodeScripts'"));
  EXPECT_THAT(ErrorWith("decoder", R"({"type": "WordPiece"})"),
              HasSubstr("decoder type 'WordPiece' is not supported"));
  EXPECT_THAT(ErrorWith("post_processor", R"({"type": "Other"})"),
              HasSubstr("post_processor type 'Other' is not supported"));
  EXPECT_THAT(ErrorWith("decoder", R"({"kind": "Fuse"})"), HasSubstr("decoder.type is missing"));
  EXPECT_THAT(ErrorWith("normalizer", R"({"type": "Sequence", "normalizers": [null]})"),
              HasSubstr("normalizer.normalizers[0] is missing"));
}

TEST(TokenizerErrorsTest, ComponentsNestedTooDeeply) {
  const auto nested = [](int levels) {
    std::string normalizer = R"({"type": "NFC"})";
    for (int i = 0; i < levels; ++i)
      normalizer.insert(0, R"({"type": "Sequence", "normalizers": [)").append("]}");
    return normalizer;
  };
  EXPECT_THAT(ErrorWith("normalizer", nested(20)), HasSubstr("components nest deeper than 16"));
  EXPECT_THAT(ErrorWith("normalizer", nested(1000)), HasSubstr("nests deeper than 64 levels"));
}

TEST(TokenizerErrorsTest, Patterns) {
  const auto error = [](const std::string& pattern) {
    return ErrorWith("pre_tokenizer",
                     R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": )" +
                         pattern + "}");
  };
  EXPECT_THAT(
      error(R"({"Regex": "("})"),
      AllOf(HasSubstr("dir/tokenizer.json: pre_tokenizer.pattern.Regex"), HasSubstr("'('")));
  EXPECT_THAT(error(R"({"Regex": "a{2"})"), "no error");
  EXPECT_THAT(error(R"({"Regex": "*"})"), HasSubstr("does not compile"));
  EXPECT_THAT(error(R"({"Regex": "[a"})"), HasSubstr("ends too early"));
  EXPECT_THAT(error(R"({"Regex": "\\p{NoSuchScript}"})"), HasSubstr("does not compile"));
  EXPECT_THAT(error(R"({"Regex": ""})"), HasSubstr("is empty"));
  EXPECT_THAT(error(R"({"String": ""})"), HasSubstr("is empty"));
  EXPECT_THAT(error(R"({"Glob": "*"})"), HasSubstr("want either \"String\" or \"Regex\""));
  EXPECT_THAT(error("\"" + std::string(70'000, 'a') + "\""),
              HasSubstr("pattern is string, want an object"));
  EXPECT_THAT(error(R"({"Regex": ")" + std::string(70'000, 'a') + "\"}"), HasSubstr("70000 bytes"));
  EXPECT_THAT(error(R"({"Regex": ")" + std::string(5'000, '[') + "\"}"),
              HasSubstr("nests too deeply"));
  EXPECT_THAT(error(R"({"Regex": ")" + std::string(5'000, '(') + "\"}"),
              HasSubstr("nests too deeply"));
  EXPECT_THAT(ErrorWith("pre_tokenizer",
                        R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Gone"})"),
              HasSubstr("pre_tokenizer.behavior: split behavior 'Gone'"));
}

TEST(TokenizerErrorsTest, OtherComponentFields) {
  EXPECT_THAT(ErrorWith("pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab"})"),
              HasSubstr("pre_tokenizer.replacement is 'ab', want one character"));
  EXPECT_THAT(ErrorWith("pre_tokenizer",
                        R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"),
              HasSubstr("prepend_scheme is 'last'"));
  EXPECT_THAT(ErrorWith("pre_tokenizer",
                        R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false,
              "prepend_scheme": "first"})"),
              HasSubstr("add_prefix_space contradicts"));
  EXPECT_THAT(ErrorWith("decoder", R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})"),
              HasSubstr("decoder.start is -1"));
  EXPECT_THAT(ErrorWith("post_processor",
                        R"({"type": "BertProcessing", "sep": ["x", 99], "cls": ["y", 0]})"),
              HasSubstr("post_processor.sep[1] is 99, want 0 to 13"));
  EXPECT_THAT(ErrorWith("post_processor",
                        R"({"type": "TemplateProcessing", "special_tokens": {},
              "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})"),
              HasSubstr("post_processor.special_tokens.<s> is missing"));
  EXPECT_THAT(ErrorWith("post_processor", R"({"type": "TemplateProcessing", "single": []})"),
              HasSubstr("want sequence A once"));
  const std::string bert = R"({"type": "BertProcessing", "sep": ["x", 1], "cls": ["y", 0]})";
  EXPECT_THAT(ErrorWith("post_processor",
                        R"({"type": "Sequence", "processors": [)" + bert + "," + bert + "]}"),
              HasSubstr("post_processor.processors[1]: a second post_processor"));
}

// A text that a component cannot process is an error of the request, not a crash.
TEST(TokenizerErrorsTest, ReplacementsAndBacktrackingAreBounded) {
  Json json = SmallTokenizer();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 60; ++i) {
    json["normalizer"]["normalizers"].push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  EXPECT_THROW(FromJsonValue(json)->Encode("a", false), Error);

  Json greedy = SmallTokenizer();
  greedy["pre_tokenizer"] = {{"type", "Split"},
                             {"pattern", {{"Regex", "(?:a|aa|aaa)+$"}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  EXPECT_THROW(FromJsonValue(greedy)->Encode(std::string(200, 'a') + "b", false), Error);
}

}  // namespace
}  // namespace switchyard
