#include "train/data/rollout.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "core/temporary_directory.h"
#include "core/testing.h"
#include "text/tokenizer/base64.h"
#include "text/tokenizer/bpe_trainer.h"
#include "train/data/corpus.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers, the first one dense; 4 experts, top-2.
const ModelShape kShape{
    .vocab_size = 500, .moe_layers = {false, true}, .num_experts = 4, .top_k = 2};

std::string Encoded(const std::vector<int32_t>& ids) {
  return Base64(std::as_bytes(std::span(ids)));
}

// Rows of a token: experts a and b in the second layer.
std::vector<int32_t> Rows(const std::vector<std::pair<int, int>>& tokens) {
  std::vector<int32_t> ids;
  for (const auto& [a, b] : tokens) ids.insert(ids.end(), {-1, -1, a, b});
  return ids;
}

// A response of POST /generate to a prompt of two tokens.
Json Response() {
  return Json::parse(R"({"text": "a b", "output_ids": [7, 8, 9], "meta_info": {
    "id": "0", "finish_reason": {"type": "length"}, "prompt_token_ids": [5, 6],
    "output_token_logprobs": [[-0.5, 7, null], [-1.5, 8, null], [null, 9, null]],
    "routed_experts": ")" +
                     Encoded(Rows({{0, 1}, {3, 2}, {1, 0}, {2, 3}})) + R"("}})");
}

class RolloutTest : public ::testing::Test {
 protected:
  RolloutTest() {
    const std::vector<std::string> special{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    BpeTrainer trainer(ByteLevelPreTokenizer(kWordPattern));
    trainer.Add("user assistant hello there");
    WriteTokenizer(dir_, trainer.Learn({.vocab_size = 280, .special_tokens = special}), special,
                   {.eos = "<|im_end|>", .chat_template = kDefaultChatTemplate});
  }

  EncodedDocument Encode(const std::string& line,
                         DocumentEncoder::ChatLoss loss = DocumentEncoder::ChatLoss::kAssistant,
                         const ModelShape& shape = kShape) {
    std::ofstream(dir_ / "a.jsonl") << "\n" << line << "\n";
    const std::vector<Document> documents = ReadDocuments({dir_ / "a.jsonl"});
    return DocumentEncoder(dir_, loss, shape).Encode(documents.at(0));
  }
  std::string Error(const Json& json) {
    return ErrorOf([&] { Encode(json.dump()); });
  }
  std::string ErrorWithExperts(const std::vector<int32_t>& ids) {
    Json json = Response();
    json["meta_info"]["routed_experts"] = Encoded(ids);
    return Error(json);
  }

  const TemporaryDirectory temporary_;
  const fs::path& dir_ = temporary_.path();
};

TEST_F(RolloutTest, AResponseIsADocument) {
  const EncodedDocument out = Encode(Response().dump());
  EXPECT_THAT(out.ids, ElementsAre(5, 6, 7, 8, 9));
  EXPECT_THAT(out.learned, ElementsAre(0, 0, 1, 1, 1));
  ASSERT_EQ(out.logprobs.size(), 5u);
  EXPECT_TRUE(std::isnan(out.logprobs[1]) && std::isnan(out.logprobs[4]));
  EXPECT_EQ(out.logprobs[2], -0.5f);
  // The last token has no row in a response.
  EXPECT_EQ(*out.experts, Rows({{0, 1}, {3, 2}, {1, 0}, {2, 3}, {-1, -1}}));
  EXPECT_THAT(Encode(Response().dump(), DocumentEncoder::ChatLoss::kAll).learned,
              ElementsAre(1, 1, 1, 1, 1));

  Json json = Response();  // with the ids of the request, and without what was not requested
  json["input_ids"] = json["meta_info"]["prompt_token_ids"];
  for (const char* key : {"prompt_token_ids", "output_token_logprobs", "routed_experts"})
    json["meta_info"].erase(key);
  const EncodedDocument plain = Encode(json.dump());
  EXPECT_EQ(plain.ids, out.ids);
  EXPECT_EQ(plain.experts, nullptr);
  EXPECT_TRUE(plain.logprobs.empty());
}

TEST_F(RolloutTest, RowsMayBeginLaterAndHaveTheLastToken) {
  Json json = Response();
  json["routed_experts_start_len"] = 2;
  json["meta_info"]["routed_experts"] = Encoded(Rows({{1, 0}, {2, 3}}));
  EXPECT_EQ(*Encode(json.dump()).experts, Rows({{-1, -1}, {-1, -1}, {1, 0}, {2, 3}, {-1, -1}}));
  json["meta_info"]["routed_experts"] = Encoded(Rows({{1, 0}, {2, 3}, {0, 2}}));
  EXPECT_EQ(*Encode(json.dump()).experts, Rows({{-1, -1}, {-1, -1}, {1, 0}, {2, 3}, {0, 2}}));
  json["routed_experts_start_len"] = 6;
  EXPECT_THAT(Error(json), HasSubstr("\"routed_experts_start_len\" is 6, but the document has 5"));
}

TEST_F(RolloutTest, TextsAndChatsMayGiveExperts) {
  const size_t text = Encode(R"({"text": "hello"})").ids.size();
  Json json = {{"text", "hello"}};
  json["routed_experts"] = Encoded(Rows(std::vector<std::pair<int, int>>(text - 1, {2, 0})));
  EXPECT_EQ(Encode(json.dump()).experts->size(), text * 4);
  json = {
      {"messages",
       {{{"role", "user"}, {"content", "hello"}}, {{"role", "assistant"}, {"content", "there"}}}}};
  const size_t chat = Encode(json.dump()).ids.size();
  json["routed_experts"] = Encoded(Rows(std::vector<std::pair<int, int>>(chat, {2, 0})));
  EXPECT_EQ(Encode(json.dump()).experts->size(), chat * 4);
}

TEST_F(RolloutTest, ErrorsOfExpertsNameFileLineTokenAndLayer) {
  const std::string where = (dir_ / "a.jsonl").string() + ":2: ";
  EXPECT_EQ(
      ErrorWithExperts(Rows({{0, 1}, {3, 2}, {1, 0}})),
      where +
          "\"routed_experts\" has 12 ids, want [rows, 2 layers, top-2] with a row for each of "
          "5 tokens, or for all but the last one: 20 or 16 ids");
  EXPECT_THAT(ErrorWithExperts({0, 1, 2}), HasSubstr("has 3 ids, want [rows, 2 layers, top-2]"));
  EXPECT_EQ(ErrorWithExperts(Rows({{0, 1}, {3, 2}, {1, 4}, {2, 3}})),
            where +
                "\"routed_experts\": token 2, layer 1: expert 4 is out of range, want 0 to 3, or "
                "-1 for none");
  EXPECT_EQ(ErrorWithExperts(Rows({{0, 1}, {3, 3}, {1, 0}, {2, 3}})),
            where + "\"routed_experts\": token 1, layer 1: expert 3 is given twice");
  std::vector<int32_t> dense = Rows({{0, 1}, {3, 2}, {1, 0}, {2, 3}});
  dense[4] = 0;
  EXPECT_THAT(ErrorWithExperts(dense),
              HasSubstr("token 1, layer 0: expert 0 is given to a layer without experts"));
  EXPECT_THAT(ErrorOf([&] {
                Encode(Response().dump(), DocumentEncoder::ChatLoss::kAll, {.vocab_size = 500});
              }),
              HasSubstr("a.jsonl:2: \"routed_experts\" for a model without experts"));
}

TEST_F(RolloutTest, WrongFieldsAreNamed) {
  const auto error = [&](const std::function<void(Json*)>& change) {
    Json json = Response();
    change(&json);
    return Error(json);
  };
  const auto meta = [&](const char* key, const Json& value) {
    return error([&](Json* json) { (*json)["meta_info"][key] = value; });
  };
  EXPECT_THAT(meta("prompt_token_ids", nullptr), HasSubstr("\"return_prompt_token_ids\": true"));
  EXPECT_THAT(meta("prompt_token_ids", {1, -2}),
              HasSubstr("\"meta_info.prompt_token_ids\": element 1 is not a token id"));
  EXPECT_THAT(meta("prompt_token_ids", {1, 500}), HasSubstr("token 1 is 500, want 0 to 499"));
  EXPECT_THAT(meta("output_token_logprobs", Json::array()), HasSubstr("is not a list of 3 log-"));
  EXPECT_THAT(meta("output_token_logprobs", {{-1, 7}, {-1, 9}, {-1, 9}}),
              HasSubstr("element 1 is not [log-probability, 8"));
  EXPECT_THAT(meta("output_token_logprobs", {{-1, 7}, {-1, 8.5}, {-1, 9}}),
              HasSubstr("element 1 is not [log-probability, 8"));
  EXPECT_THAT(meta("routed_experts", {1, 2}), HasSubstr("\"routed_experts\" is not base64"));
  EXPECT_THAT(meta("routed_experts", "AAA="), HasSubstr("has 2 bytes, which are not int32"));
  EXPECT_THAT(error([](Json* json) { (*json)["output_ids"] = Json::array(); }),
              HasSubstr("\"output_ids\" is empty"));
  EXPECT_THAT(error([](Json* json) { (*json)["input_ids"] = {5}; }), HasSubstr("differ"));
  EXPECT_THAT(error([](Json* json) { (*json)["meta_info"] = 1; }),
              HasSubstr("without the ids of the prompt"));
  EXPECT_THAT(error([](Json* json) { (*json)["routed_experts"] = "AAAA"; }), HasSubstr("both"));
  EXPECT_THAT(error([](Json* json) { (*json)["routed_experts_start_len"] = "1"; }),
              HasSubstr("is not a number of tokens"));
  EXPECT_THAT(error([](Json* json) { (*json)["messages"] = Json::array(); }),
              HasSubstr("with \"output_ids\" and without \"messages\""));
}

// Documents of n tokens, of which every second one gives experts: token t of document d has expert
// (d + t) % 4 and the next one.
std::vector<EncodedDocument> MadeUp(const std::vector<int>& lengths) {
  std::vector<EncodedDocument> out;
  for (const int length : lengths) {
    const int d = static_cast<int>(out.size());
    EncodedDocument& document = out.emplace_back();
    std::vector<std::pair<int, int>> experts;
    for (int t = 0; t < length; ++t) {
      document.ids.push_back(100 * d + t);
      experts.emplace_back((d + t) % 4, (d + t + 1) % 4);
    }
    document.learned.assign(static_cast<size_t>(length), 1);
    if (d % 2 == 1) document.experts = std::make_shared<std::vector<int32_t>>(Rows(experts));
  }
  return out;
}

TEST(PackedExperts, BelongToTheirTokens) {
  const std::vector<int> lengths{3, 11, 6, 9, 2, 20};
  for (const bool whole : {false, true}) {
    Corpus corpus(MadeUp(lengths), {.length = 8, .whole_documents = whole, .seed = 3});
    SamplePosition position;
    Batch batch;
    for (const Row& row : corpus.Take(corpus.RowsOf(0), &position))
      AppendRow(corpus.documents(), row, &batch);
    ASSERT_EQ(batch.experts.size(), batch.tokens.size() * 4);
    for (int64_t i = 0; i < batch.size(); ++i) {
      const int d = batch.tokens[i] / 100, t = batch.tokens[i] % 100;
      const auto row = batch.experts.begin() + 4 * i;
      const auto want = d % 2 == 1 ? Rows({{(d + t) % 4, (d + t + 1) % 4}}) : Rows({{-1, -1}});
      EXPECT_EQ(std::vector<int32_t>(row, row + 4), want) << d << " " << t;
    }
  }
}

TEST(PackedExperts, ChangeTheFingerprintAndAreAbsentWithoutGivenExperts) {
  const auto documents = MadeUp({5, 5});
  const Corpus given(documents, {.length = 8});
  std::vector<EncodedDocument> without = documents;
  without[1].experts.reset();
  Corpus plain(without, {.length = 8});
  EXPECT_NE(given.fingerprint(), plain.fingerprint());
  SamplePosition position;
  Batch batch;
  for (const Row& row : plain.Take(plain.RowsOf(0), &position))
    AppendRow(plain.documents(), row, &batch);
  EXPECT_TRUE(batch.experts.empty());
}

}  // namespace
}  // namespace switchyard::train
