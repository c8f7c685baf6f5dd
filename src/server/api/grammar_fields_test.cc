// Fields that constrain outputs: their grammars, and the errors for invalid values.
#include "server/api/grammar_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/front/test_service.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GrammarFieldsTest : public ::testing::Test {
 protected:
  std::shared_ptr<const ReadyGrammar> Parse(const std::string& body,
                                            const std::string& prefix = "") {
    const Json json = Json::parse(body);
    GenerationSpec spec;
    ParseGrammar(world_.service, Fields(json, prefix), &spec);
    return spec.grammar;
  }

  // "<param>: <message>" of the refusal.
  std::string Refusal(const std::string& body, const std::string& prefix = "") {
    try {
      Parse(body, prefix);
    } catch (const RequestError& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(e.what(), HasSubstr(e.param()));
      return e.param() + ": " + e.what();
    }
    return "accepted";
  }

  // Whether the grammar accepts the text's tokens, and may end there.
  bool Matches(const std::string& body, const std::string& text) {
    const auto grammar = Parse(body);
    if (!grammar) return false;
    GrammarMatcher matcher(grammar->grammar);
    for (const int32_t id : world_.model.tokenizer->Encode(text, false))
      if (!matcher.Accept(id)) return false;
    return matcher.CanEnd();
  }

  TestService world_{"qwen3_moe"};
};

TEST_F(GrammarFieldsTest, EachFieldConstrainsTheOutput) {
  const std::string schema = R"({"type": "object", "properties": {"b": {"type": "integer"},
      "a": {"type": "integer"}}, "required": ["b", "a"]})";
  const std::string quoted = Json(schema).dump();
  for (const std::string& body :
       {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
           "schema": )" +
            schema + "}}}",
        R"({"json_schema": )" + schema + "}", R"({"json_schema": )" + quoted + "}",
        R"({"guided_json": )" + schema + "}", R"({"guided_json": )" + quoted + "}",
        R"({"structured_outputs": {"json": )" + schema + "}}"}) {
    EXPECT_TRUE(Matches(body, R"({"b": 1, "a": 2})")) << body;
    // Properties must have the order of the schema.
    EXPECT_FALSE(Matches(body, R"({"a": 2, "b": 1})")) << body;
    EXPECT_FALSE(Matches(body, "{}")) << body;
  }
  for (const char* body :
       {R"({"response_format": {"type": "json_object"}})", R"({"guided_json_object": true})",
        R"({"structured_outputs": {"json_object": true}})", R"({"json_schema": "$$ANY$$"})"}) {
    EXPECT_TRUE(Matches(body, R"({"x": [1]})")) << body;
    EXPECT_FALSE(Matches(body, "[1]")) << body;
  }
  for (const char* body :
       {R"({"regex": "a+"})", R"({"guided_regex": "a+"})",
        R"({"structured_outputs": {"regex": "a+"}})", R"({"ebnf": "root ::= [a]+"})",
        R"({"guided_grammar": "root ::= [a]+"})", R"({"guided_grammar": "start: /a+/\n"})",
        R"({"structured_outputs": {"grammar": "root ::= [a]+"}})",
        R"({"guided_choice": ["a", "aaa"]})",
        R"({"structured_outputs": {"choice": ["a", "aaa"]}})"}) {
    EXPECT_TRUE(Matches(body, "aaa")) << body;
    EXPECT_FALSE(Matches(body, "b")) << body;
  }
  const std::string tag = R"("structures": [{"begin": "<f>", "schema": {"type": "integer"},
      "end": "</f>"}], "triggers": ["<f>"])";
  for (const std::string& body :
       {R"({"structural_tag": {"type": "structural_tag", )" + tag + "}}",
        R"({"structural_tag": )" + Json("{" + tag + "}").dump() + "}",
        R"({"structured_outputs": {"structural_tag": {)" + tag + "}}}",
        R"({"response_format": {"type": "structural_tag", )" + tag + "}}"}) {
    EXPECT_TRUE(Matches(body, "ab <f>12</f>")) << body;
    EXPECT_FALSE(Matches(body, "<f>x</f>")) << body;
  }
}

TEST_F(GrammarFieldsTest, AbsentAndEmptyFieldsConstrainNothing) {
  for (const char* body :
       {"{}", R"({"response_format": {"type": "text"}})", R"({"regex": null})", R"({"regex": ""})",
        R"({"guided_choice": []})", R"({"guided_json": null, "guided_json_object": false})",
        R"({"structured_outputs": {"json": null}})", R"({"structural_tag": {}})",
        R"({"guided_decoding_backend": "xgrammar", "guided_whitespace_pattern": ""})"})
    EXPECT_EQ(Parse(body), nullptr) << body;
}

TEST_F(GrammarFieldsTest, RefusalsNameTheFieldAndTheReason) {
  const std::vector<std::array<const char*, 3>> kRefused = {
      {R"({"response_format": {"type": "yaml"}})", "response_format.type", "yaml"},
      {R"({"response_format": "json"})", "response_format", "object"},
      {R"({"response_format": {"type": "json_schema"}})", "response_format.json_schema", "object"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}})",
       "response_format.json_schema.schema", "missing"},
      {R"({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties":
          {"a": {"not": {}}}}}}})",
       "response_format.json_schema.schema", "#/properties/a: not"},
      {R"({"guided_json": "{"})", "guided_json", "not JSON"},
      {R"({"guided_json": {"type": "string", "format": "iri"}})", "guided_json", "format iri"},
      {R"({"regex": "(a"})", "regex", ""},
      {R"x({"regex": "a(?=b)"})x", "regex", "ookahead"},
      {R"({"ebnf": "root ::= x"})", "ebnf", "x"},
      {R"({"guided_choice": [1]})", "guided_choice", ""},
      {R"({"structural_tag": "{}"})", "structural_tag", "format"},
      {R"({"structured_outputs": {"poem": 1}})", "structured_outputs.poem", "not supported"},
      {R"({"structured_outputs": {"disable_additional_properties": true}})",
       "structured_outputs.disable_additional_properties", "not supported"},
      {R"({"guided_json": {}, "guided_whitespace_pattern": "[a]"})", "guided_whitespace_pattern",
       "not supported"}};
  for (const auto& [body, param, reason] : kRefused) {
    const std::string refusal = Refusal(body);
    EXPECT_THAT(refusal, AllOf(::testing::StartsWith(std::string(param) + ": "), HasSubstr(reason)))
        << body;
  }
  EXPECT_THAT(Refusal(R"({"regex": "("})", "sampling_params."),
              ::testing::StartsWith("sampling_params.regex: "));
}

TEST_F(GrammarFieldsTest, ConstraintsExcludeEachOther) {
  for (const char* body :
       {R"({"regex": "a", "ebnf": "root ::= \"a\""})", R"({"guided_json": {}, "regex": "a"})",
        R"({"response_format": {"type": "json_object"}, "guided_choice": ["a"]})",
        R"({"structured_outputs": {"json": {}, "regex": "a"}})",
        R"({"guided_regex": "a", "structured_outputs": {"choice": ["a"]}})"})
    EXPECT_THAT(Refusal(body), HasSubstr("want one constraint")) << body;
}

TEST_F(GrammarFieldsTest, RequestsChooseTheirWhiteSpace) {
  const std::string spaced = R"({"a": 1})", tight = R"({"a":1})";
  const std::string schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}})";
  const std::string any = R"({"guided_json": )" + schema + "}";
  EXPECT_TRUE(Matches(any, spaced) && Matches(any, tight));
  const std::string none = R"({"guided_json": )" + schema + R"(, "guided_whitespace_pattern": ""})";
  EXPECT_TRUE(Matches(none, tight));
  EXPECT_FALSE(Matches(none, spaced));
  const std::string python =
      R"({"structured_outputs": {"json": )" + schema + R"(, "disable_any_whitespace": true}})";
  EXPECT_TRUE(Matches(python, spaced));
  EXPECT_FALSE(Matches(python, tight));
}

TEST_F(GrammarFieldsTest, WithoutABackendConstraintsAreRefused) {
  world_.service.grammars = nullptr;
  EXPECT_THAT(Refusal(R"({"regex": "a"})"), HasSubstr("--grammar-backend none"));
  EXPECT_EQ(Parse(R"({"response_format": {"type": "text"}})"), nullptr);
}

TEST_F(GrammarFieldsTest, EqualConstraintsAreCompiledOnce) {
  const auto first = Parse(R"({"guided_json": {"type": "integer"}})");
  EXPECT_EQ(Parse(R"({"json_schema": "{\"type\": \"integer\", \"title\": \"n\"}"})"), first);
}

}  // namespace
}  // namespace switchyard
