// Requests to embedding models and classifiers without ranks, and the responses.
#include "server/pooling/pooling.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "server/anthropic/messages.h"
#include "server/front/test_service.h"
#include "server/native/native.h"
#include "server/openai/openai.h"
#include "server/openai/test_requests.h"
#include "server/openapi/schemas.h"
#include "server/pooling/vectors.h"

namespace switchyard::pooling {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;
using ::testing::HasSubstr;

using Ids = std::vector<int32_t>;

ServerArgs ArgsOf(const std::string& checkpoint, const std::string& overrides = "") {
  return {.engine = {.model_path = SWITCHYARD_TEST_DATA "/" + checkpoint,
                     .model_override_args = overrides}};
}

// A server whose model gives each prompt the vector of `VectorOf`.
class PoolingServer {
 public:
  explicit PoolingServer(const ServerArgs& args, int32_t context = 512)
      : world_(args, context), server_(http::ServerOptions()) {
    openai::Register(server_, world_.service);
    anthropic::Register(server_, world_.service);
    native::Register(server_, world_.service);
    Register(server_, world_.service);
    server_.Start();
    world_.link.answer_to = [this](const EngineRequest& request) { return Answer(request); };
  }

  Json Post(const std::string& path, const Json& body, int status = 200) {
    return Json::parse(PostJson(server_.port(), path, body, status));
  }
  std::string ErrorOf(const std::string& path, const Json& body) {
    return Post(path, body, 400)["error"]["message"].get<std::string>();
  }
  Ids Encode(const std::string& text, bool special = true) const {
    return world_.model.tokenizer->Encode(text, special);
  }

  std::vector<EngineRequest> requests;
  // The vector of a prompt, of the model's width.
  std::function<std::vector<float>(const Ids&)> vector_of;

 private:
  RequestOutput Answer(const EngineRequest& request) {
    requests.push_back(request);
    RequestOutput output{.finish = FinishReason::kLength,
                         .prompt_tokens = static_cast<int32_t>(request.input_ids.size())};
    if (request.pooling != Pooling::kNone) {
      output.pooled = vector_of(request.input_ids);
      return output;
    }
    output.new_tokens = {5};
    PositionLogprobs logprobs{.token = 5};
    for (const int32_t id : request.logprob.token_ids)
      logprobs.requested.push_back({id, std::log(0.1f * static_cast<float>(id))});
    output.output_logprobs = {logprobs};
    return output;
  }

  TestService world_;
  http::Server server_;
};

// An embedding model. The vector of a prompt is [prompt length, 2, 0, 0, …].
class EmbeddingsTest : public ::testing::Test {
 protected:
  EmbeddingsTest() : server_(ArgsOf("pooling/qwen3_embedding")) {
    server_.vector_of = [](const Ids& ids) {
      std::vector<float> vector(32);
      vector[0] = static_cast<float>(ids.size());
      vector[1] = 2;
      return vector;
    };
  }
  PoolingServer server_;
};

TEST_F(EmbeddingsTest, AnswerAsOpenAi) {
  const Json answer = server_.Post("/v1/embeddings", {{"input", "the yard"}, {"user", "me"}});
  EXPECT_EQ(answer["object"], "list");
  ASSERT_EQ(answer["data"].size(), 1u);
  EXPECT_EQ(answer["data"][0]["object"], "embedding");
  const auto vector = answer["data"][0]["embedding"].get<std::vector<float>>();
  ASSERT_EQ(vector.size(), 32u);
  const auto length = static_cast<double>(server_.Encode("the yard").size());
  EXPECT_THAT(vector[0], FloatNear(static_cast<float>(length / std::hypot(length, 2)), 1e-6));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], length);
  EXPECT_EQ(answer["usage"]["total_tokens"], length);
  ASSERT_EQ(server_.requests.size(), 1u);
  EXPECT_EQ(server_.requests[0].pooling, Pooling::kLast);
  EXPECT_EQ(server_.requests[0].sampling.max_new_tokens, 0);
  EXPECT_EQ(server_.requests[0].input_ids.back(), 509) << "the tokenizer adds <|endoftext|>";
}

TEST_F(EmbeddingsTest, TakeTextsAndIds) {
  const auto prompts = [&](const Json& input) {
    server_.requests.clear();
    server_.Post("/v1/embeddings", {{"input", input}});
    std::vector<Ids> all;
    for (const EngineRequest& request : server_.requests) all.push_back(request.input_ids);
    return all;
  };
  EXPECT_THAT(prompts({"the yard", "a train"}),
              ElementsAre(server_.Encode("the yard"), server_.Encode("a train")));
  EXPECT_THAT(prompts({3, 4, 5}), ElementsAre(Ids{3, 4, 5}));
  EXPECT_THAT(prompts({{3, 4}, {5}}), ElementsAre(Ids{3, 4}, Ids{5}));
}

TEST_F(EmbeddingsTest, FormsAreFloatAndBase64) {
  const Json list = server_.Post("/v1/embeddings", {{"input", "yard"}});
  const Json coded =
      server_.Post("/v1/embeddings", {{"input", "yard"}, {"encoding_format", "base64"}});
  EXPECT_EQ(coded["data"][0]["embedding"].get<std::string>().size(), (32 * 4 + 2) / 3 * 4u);
  EXPECT_TRUE(list["data"][0]["embedding"].is_array());
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", "yard"}, {"encoding_format", "hex"}}),
              HasSubstr("want float or base64"));
}

TEST_F(EmbeddingsTest, DimensionsShortenAndNormalizeAgain) {
  const Json answer = server_.Post("/v1/embeddings", {{"input", {1, 2, 3}}, {"dimensions", 1}});
  EXPECT_EQ(answer["data"][0]["embedding"], Json::array({1.0}));
  for (const int dimensions : {0, 33})
    EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", "x"}, {"dimensions", dimensions}}),
                HasSubstr("dimensions"));
  const Json raw =
      server_.Post("/v1/embeddings", {{"input", {1, 2, 3}}, {"use_activation", false}});
  EXPECT_EQ(raw["data"][0]["embedding"][0], 3.0);
}

TEST_F(EmbeddingsTest, ErrorsNameTheField) {
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"user", "me"}}), HasSubstr("input is missing"));
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", ""}}), HasSubstr("empty text"));
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", Json::array()}}),
              HasSubstr("input is an empty list"));
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", {600}}}), HasSubstr("600"));
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"messages", {{{"role", "user"}}}}}),
              HasSubstr("messages is not supported"));
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", "x"}, {"embed_dtype", "int8"}}),
              HasSubstr("embed_dtype"));
}

TEST_F(EmbeddingsTest, PromptsMayFillTheContextAndBeTruncated) {
  const Json full = Ids(512, 3), more = Ids(513, 3);
  server_.Post("/v1/embeddings", {{"input", full}});
  EXPECT_THAT(server_.ErrorOf("/v1/embeddings", {{"input", more}}),
              HasSubstr("maximum context length is 512 tokens"));
  server_.Post("/v1/embeddings", {{"input", more}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(server_.requests.back().input_ids.size(), 512u);
}

TEST_F(EmbeddingsTest, EncodeAnswersAsSglang) {
  const Json one = server_.Post("/encode", {{"text", "yard"}, {"rid", "a"}});
  EXPECT_EQ(one["embedding"].size(), 32u);
  EXPECT_EQ(one["meta_info"]["id"], "a");
  EXPECT_EQ(one["meta_info"]["prompt_tokens"], server_.Encode("yard").size());
  EXPECT_EQ(server_.Post("/encode", {{"input_ids", {{1, 2}, {3}}}}).size(), 2u);
  EXPECT_THAT(server_.ErrorOf("/encode", {{"text", "x"}, {"input_ids", {1}}}),
              HasSubstr("one of text and input_ids"));
}

TEST_F(EmbeddingsTest, ScoresAreCosines) {
  // [4, 2] and [2, 2] have the cosine 12 / sqrt(160).
  server_.vector_of = [&](const Ids& ids) {
    std::vector<float> vector(32);
    vector[0] = ids == server_.Encode("a") ? 4 : 2;
    vector[1] = ids == server_.Encode("opposite") ? -2 : 2;
    return vector;
  };
  const float cosine = static_cast<float>(12 / std::sqrt(160.0));
  for (const auto& [first, second] : {std::pair{"text_1", "text_2"},
                                      {"queries", "documents"},
                                      {"queries", "items"},
                                      {"data_1", "data_2"}}) {
    const Json answer = server_.Post("/v1/score", {{first, "a"}, {second, {"b", "a"}}});
    EXPECT_THAT(answer["data"][0]["score"].get<float>(), FloatNear(cosine, 1e-6));
    EXPECT_THAT(answer["data"][1]["score"].get<float>(), FloatNear(1, 1e-6));
    EXPECT_EQ(answer["data"][1]["object"], "score");
  }
  const Json pairs = server_.Post("/score", {{"text_1", {"a", "b"}}, {"text_2", {"b", "b"}}});
  EXPECT_THAT(pairs["data"][1]["score"].get<float>(), FloatNear(1, 1e-6));
  EXPECT_THAT(server_.ErrorOf("/score", {{"text_1", {"a", "b"}}, {"text_2", "b"}}),
              HasSubstr("text_2 has 1 texts, want 2"));
  EXPECT_THAT(server_.ErrorOf("/score", {{"text_1", "a"}}), HasSubstr("want text_1 and text_2"));
  EXPECT_THAT(server_.ErrorOf("/score", {{"query", "a"}, {"items", "b"}}),
              HasSubstr("use text_1 and text_2"));

  const Json rerank = {{"query", "a"}, {"documents", {"opposite", {{"text", "b"}}, "a"}}};
  const Json ranked = server_.Post("/v1/rerank", rerank);
  std::vector<int> order;
  for (const Json& result : ranked["results"]) order.push_back(result["index"]);
  EXPECT_THAT(order, ElementsAre(2, 1, 0));
  EXPECT_EQ(ranked["results"][1]["document"]["text"], "b");
  Json two = rerank;
  two["top_n"] = 2;
  two["return_documents"] = false;
  EXPECT_EQ(server_.Post("/rerank", two)["results"].size(), 2u);
  EXPECT_FALSE(server_.Post("/rerank", two)["results"][0].contains("document"));
  EXPECT_THAT(server_.ErrorOf("/rerank", {{"query", "a"}, {"documents", Json::array()}}),
              HasSubstr("documents has no texts"));
}

TEST_F(EmbeddingsTest, RerankReadsWhatItsSchemaAllows) {
  using openapi::SchemaOf;
  EXPECT_EQ(Json::parse(SchemaOf(RequestKind::kRerank, "query"))["type"], "string");
  const Json documents = Json::parse(SchemaOf(RequestKind::kRerank, "documents"));
  EXPECT_EQ(documents["items"]["anyOf"][0]["type"], "string");
  EXPECT_EQ(documents["items"]["anyOf"][1]["required"], Json::array({"text"}));
  for (const Json& query : {Json::object({{"text", "a"}}), Json::array({"a"}), Json(1)})
    EXPECT_THAT(server_.ErrorOf("/rerank", {{"query", query}, {"documents", {"b"}}}),
                HasSubstr("query"));
  for (const Json& document : {Json::object({{"title", "b"}}), Json::array({"b"}), Json(1)})
    EXPECT_THAT(
        server_.ErrorOf("/rerank", {{"query", "a"}, {"documents", Json::array({document})}}),
        HasSubstr("want texts, or objects with a text"));
}

TEST_F(EmbeddingsTest, RequestsForTextAndClassesAreRefused) {
  const std::string text = "does not generate text";
  const Json messages = {{{"role", "user"}, {"content", "Hello"}}};
  EXPECT_THAT(server_.ErrorOf("/v1/completions", {{"prompt", "x"}}), HasSubstr(text));
  EXPECT_THAT(server_.ErrorOf("/v1/chat/completions", {{"messages", messages}}), HasSubstr(text));
  EXPECT_THAT(server_.ErrorOf("/v1/responses", {{"input", "x"}}), HasSubstr(text));
  EXPECT_THAT(server_.ErrorOf("/v1/messages", {{"messages", messages}, {"max_tokens", 1}}),
              HasSubstr(text));
  EXPECT_THAT(server_.ErrorOf("/generate", {{"text", "x"}}), HasSubstr(text));
  EXPECT_THAT(server_.ErrorOf("/classify", {{"input", "x"}}), HasSubstr("not a classifier"));
}

TEST(ClassifyTest, ProbabilitiesAndLabels) {
  PoolingServer server(ArgsOf("pooling/qwen3_moe_classifier"));
  server.vector_of = [](const Ids&) { return std::vector<float>{0, std::log(2.0f), 0}; };
  const Json answer = server.Post("/v1/classify", {{"input", {"x", "y"}}});
  ASSERT_EQ(answer["data"].size(), 2u);
  EXPECT_EQ(answer["data"][1]["label"], "passenger");
  EXPECT_EQ(answer["data"][1]["num_classes"], 3);
  EXPECT_THAT(answer["data"][1]["probs"][1].get<float>(), FloatNear(0.5, 1e-6));
  EXPECT_EQ(server.Post("/classify", {{"text", "x"}})["embedding"][0], 0.0)
      << "SGLang's native body";
  const Json scores = server.Post("/v1/score", {{"query", "a"}, {"items", {"b", "c"}}});
  EXPECT_EQ(scores["scores"][1][0], 0.0);
  const Json softmax =
      server.Post("/v1/score", {{"query", "a"}, {"items", "b"}, {"apply_softmax", true}});
  EXPECT_THAT(softmax["scores"][0][1].get<float>(), FloatNear(0.5, 1e-6));
  EXPECT_THAT(server.ErrorOf("/v1/embeddings", {{"input", "x"}}), HasSubstr("/classify"));
  EXPECT_THAT(server.ErrorOf("/rerank", {{"query", "a"}, {"documents", {"b"}}}),
              HasSubstr("3 classes"));
}

TEST(ClassifyTest, OneClassScoresPairs) {
  PoolingServer server(
      ArgsOf("pooling/qwen3_moe_classifier", R"({"id2label": {"0": "relevant"}})"));
  server.vector_of = [](const Ids&) { return std::vector<float>{0}; };
  const Json answer = server.Post("/v1/score", {{"text_1", "a"}, {"text_2", {"b", "c"}}});
  EXPECT_THAT(answer["data"][1]["score"].get<float>(), FloatEq(0.5)) << "a sigmoid";
  Ids pair = server.Encode("a", false);
  for (const int32_t id : server.Encode("c")) pair.push_back(id);
  EXPECT_EQ(server.requests.back().input_ids, pair);
  const Json raw =
      server.Post("/rerank", {{"query", "a"}, {"documents", {"b"}}, {"use_activation", false}});
  EXPECT_EQ(raw["results"][0]["relevance_score"], 0.0);
}

TEST(LabelScoresTest, AreProbabilitiesAfterQueryAndItem) {
  PoolingServer server(ArgsOf("fixtures/qwen3"));
  const Json body = {{"query", "ab"}, {"items", {"c", "d"}}, {"label_token_ids", {1, 3}}};
  const Json answer = server.Post("/v1/score", body);
  EXPECT_EQ(answer["object"], "scoring");
  EXPECT_THAT(answer["scores"][1][1].get<float>(), FloatNear(0.3, 1e-6));
  EXPECT_EQ(server.requests[1].input_ids, server.Encode("abd"));
  EXPECT_EQ(server.requests[1].sampling.max_new_tokens, 1);
  Json changed = body;
  changed["apply_softmax"] = changed["item_first"] = true;
  EXPECT_THAT(server.Post("/v1/score", changed)["scores"][0][1].get<float>(),
              FloatNear(0.75, 1e-6));
  EXPECT_EQ(server.requests[2].input_ids, server.Encode("cab"));
  server.Post("/score", {{"query", {1, 2}}, {"items", {{3}, {4}}}, {"label_token_ids", {1}}});
  EXPECT_EQ(server.requests.back().input_ids, (Ids{1, 2, 4}));
  EXPECT_THAT(server.ErrorOf("/score", {{"query", "a"}, {"items", "b"}}),
              HasSubstr("label_token_ids is missing"));
  EXPECT_THAT(
      server.ErrorOf("/score", {{"query", "a"}, {"items", "b"}, {"label_token_ids", {900}}}),
      HasSubstr("900"));
}

TEST(LabelScoresTest, ModelsThatGenerateTextRefuseEmbeddings) {
  PoolingServer server(ArgsOf("fixtures/qwen3"));
  for (const char* path : {"/v1/embeddings", "/encode", "/classify", "/rerank"})
    EXPECT_THAT(server.ErrorOf(path, {{"input", "x"}}), HasSubstr("--is-embedding")) << path;
  EXPECT_THAT(server.ErrorOf("/score", {{"text_1", "x"}, {"text_2", "y"}}),
              HasSubstr("--is-embedding"));
}

TEST(VectorsTest, ArithmeticAndText) {
  std::vector<float> zero(3), scores{0, 0};
  Normalize(zero);
  EXPECT_THAT(zero, ElementsAre(0, 0, 0));
  Softmax(scores);
  EXPECT_THAT(scores, ElementsAre(0.5f, 0.5f));
  EXPECT_EQ(Cosine(zero, zero), 0.0f);
  EXPECT_EQ(JsonList(std::vector<float>{0.1f, -2, 1e-9f}), "[0.1,-2,1e-09]");
}

}  // namespace
}  // namespace switchyard::pooling
