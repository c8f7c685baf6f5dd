// The OpenAPI document describes exactly the routes and fields of the server.
#include "server/openapi/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/http/router.h"
#include "server/openai/answering_server.h"
#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class OpenApiTest : public ::testing::Test {
 protected:
  OpenApiTest() { server_.Answer("yes"); }

  Json Document() { return Json::parse(GetText(server_.port(), "/openapi.json")); }

  AnsweringServer server_{"qwen3"};
};

std::string Upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// Calls `visit` with each object in `json`.
template <typename Visit>
void Walk(const Json& json, const Visit& visit) {
  if (json.is_object()) visit(json);
  if (json.is_structured())
    for (const Json& child : json) Walk(child, visit);
}

TEST_F(OpenApiTest, HasEveryRouteAndNoOther) {
  std::set<std::string> served, described;
  for (const http::Router::Entry& route : server_.router().Entries())
    served.insert(route.method + " " + route.path);
  const Json document = Document();
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      const std::string route = server_.router().RouteOf(path);
      described.insert(Upper(method) + " " + (route == path ? path : route));
    }
  }
  EXPECT_EQ(described, served);
}

TEST_F(OpenApiTest, OperationsHaveDifferentIds) {
  std::set<std::string> ids;
  const Json document = Document();
  for (const Json& methods : document["paths"]) {
    for (const Json& operation : methods)
      EXPECT_TRUE(ids.insert(operation["operationId"].get<std::string>()).second) << operation;
  }
}

TEST_F(OpenApiTest, EveryReferenceHasATarget) {
  const Json document = Document();
  std::set<std::string> used;
  Walk(document, [&](const Json& object) {
    const auto ref = object.find("$ref");
    if (ref == object.end()) return;
    const std::string target = ref->get<std::string>();
    EXPECT_THAT(target, StartsWith("#/"));
    EXPECT_TRUE(document.contains(Json::json_pointer(target.substr(1)))) << target;
    used.insert(target);
  });
  for (const auto& [name, schema] : document["components"]["schemas"].items())
    EXPECT_TRUE(used.contains("#/components/schemas/" + name)) << name << " is unused";
}

TEST_F(OpenApiTest, BodiesHaveExactlyTheKnownFields) {
  const Json document = Document();
  for (const Body& body : Bodies()) {
    std::set<std::string> known, described;
    for (const KnownField& field : KnownFields(body.kind)) known.insert(field.name);
    for (const auto& [name, schema] :
         document["components"]["schemas"][body.name]["properties"].items())
      described.insert(name);
    EXPECT_EQ(described, known) << body.name;
  }
}

TEST_F(OpenApiTest, EveryHonouredFieldHasASchema) {
  std::set<std::string> shared;  // names of shared schemas that some body uses
  for (const Body& body : Bodies()) {
    std::set<std::string> honoured;
    for (const KnownField& field : KnownFields(body.kind)) {
      if (field.use != FieldUse::kHonoured) continue;
      honoured.insert(field.name);
      EXPECT_NE(SchemaOf(body.kind, field.name), nullptr) << body.name << ": " << field.name;
      shared.insert(field.name);
    }
    for (const FieldSchema& schema : OwnSchemas(body.kind))
      EXPECT_TRUE(honoured.contains(schema.name)) << body.name << ": " << schema.name;
  }
  for (const FieldSchema& schema : SharedSchemas())
    EXPECT_TRUE(shared.contains(schema.name)) << schema.name;
}

// The values that the document lists for a refused field are those that the server accepts.
TEST_F(OpenApiTest, RefusedFieldsListTheirAcceptedValues) {
  const Json document = Document();
  for (const Body& body : Bodies()) {
    const Json& properties = document["components"]["schemas"][body.name]["properties"];
    for (const KnownField& field : KnownFields(body.kind)) {
      const Json& schema = properties[field.name];
      const bool refused = schema.value("x-refused", false);
      EXPECT_EQ(refused,
                field.use == FieldUse::kRefused || field.use == FieldUse::kRefusedEvenEmpty);
      if (!refused) continue;
      EXPECT_THAT(schema["description"].get<std::string>(), HasSubstr(field.name));
      for (const Json& value : schema["enum"]) EXPECT_FALSE(IsRefused(field, value)) << field.name;
      EXPECT_TRUE(IsRefused(field, "other")) << field.name;
    }
  }
}

// Whether a schema allows values of the type "object" or "array". An empty schema allows all.
bool Allows(const Json& schema, const char* type) {
  if (const auto any = schema.find("anyOf"); any != schema.end())
    return std::ranges::any_of(*any, [&](const Json& s) { return Allows(s, type); });
  if (schema.contains("$ref")) return std::string_view(type) == "object";
  if (schema.contains("enum") || schema.contains("const")) return false;
  const auto types = schema.find("type");
  if (types == schema.end()) return true;
  return *types == type ||
         (types->is_array() && std::ranges::find(*types, Json(type)) != types->end());
}

// Fails if a parser accepts a field of a type that the field's schema does not have.
TEST_F(OpenApiTest, ParsersRefuseValuesOfOtherTypes) {
  const Json user = {{"role", "user"}, {"content", "Hi"}};
  const Json messages = Json::array({user});
  const std::map<std::string, std::pair<std::string, Json>> requests = {
      {"ChatRequest", {"/v1/chat/completions", {{"messages", messages}, {"stream", false}}}},
      {"CompletionRequest", {"/v1/completions", {{"prompt", "Hi"}, {"stream", false}}}},
      {"ResponseRequest", {"/v1/responses", {{"input", "Hi"}, {"stream", false}}}},
      {"MessageRequest", {"/v1/messages", {{"messages", messages}, {"max_tokens", 4}}}},
      {"GenerateRequest", {"/generate", {{"text", "Hi"}, {"stream", false}}}},
      {"TokenizeRequest", {"/tokenize", {{"messages", messages}, {"return_token_strs", false}}}},
      {"DetokenizeRequest", {"/detokenize", {{"tokens", {1}}, {"skip_special_tokens", true}}}},
      {"StartProfileRequest", {"/start_profile", Json::object()}},
      {"ScaleElasticEpRequest", {"/scale_elastic_ep", {{"new_ep_size", 1}}}}};
  const Json document = Document();
  for (const auto& [name, request] : requests) {
    for (const auto& [field, schema] :
         document["components"]["schemas"][name]["properties"].items()) {
      // `prompt` is not read if `messages` is set.
      const bool unread = name == "TokenizeRequest" && field == "prompt";
      if (unread || schema.empty() || schema.contains("x-refused")) continue;
      for (const auto& [type, value] :
           std::map<std::string, Json>{{"object", Json::object({{"unknown", Json::array({0.5})}})},
                                       {"array", Json::array({Json::array({0.5})})}}) {
        if (Allows(schema, type.c_str())) continue;
        Json body = request.second;
        body[field] = value;
        SCOPED_TRACE(name + ": " + body.dump());
        EXPECT_TRUE(server_.Ask(request.first, body, 400).contains("error"));
      }
    }
  }
}

TEST_F(OpenApiTest, DefaultsOfSamplingAreThoseOfTheModel) {
  const SamplingParams& defaults = server_.world().model.sampling_defaults;
  const Json properties = Document()["components"]["schemas"]["ChatRequest"]["properties"];
  EXPECT_EQ(properties["temperature"]["default"].get<float>(), defaults.temperature);
  EXPECT_EQ(properties["top_k"]["default"].get<int>(), defaults.top_k);
}

TEST_F(OpenApiTest, ThePageOfTheDocsRefersToNoOtherSite) {
  const std::string page = GetText(server_.port(), "/docs");
  EXPECT_THAT(page, HasSubstr("openapi.json"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("http://")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("https://")));
}

TEST(OpenApiKeysTest, KeysAreInTheDocument) {
  ServerArgs args;
  args.http.api_key = "secret";
  AnsweringServer server("qwen3", {}, args);
  const Json document = Json::parse(GetText(server.port(), "/openapi.json"));
  EXPECT_EQ(document["security"].size(), 2u);
  EXPECT_EQ(document["paths"]["/health"]["get"]["security"], Json::array());
  EXPECT_THAT(document.dump(), ::testing::Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace switchyard::openapi
