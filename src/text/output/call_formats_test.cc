// Details of individual formats: variants that models write, conversion of parameters, truncated
// calls.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/output/output_test_message.h"
#include "text/output/python_literal.h"

namespace switchyard {
namespace {

ParsedMessage Parse(const std::string& calls, std::string_view text, bool complete = true) {
  return ParsePieces({.calls = calls, .reasoning = {}, .prompt = {}, .complete = complete},
                     std::vector{text});
}

// Arguments of the only call; the whole message if there is not exactly one call.
std::string Arguments(const std::string& calls, std::string_view text, bool complete = true) {
  const ParsedMessage message = Parse(calls, text, complete);
  return message.calls.size() == 1 ? message.calls[0].arguments : message.Text();
}

std::string Hermes(const std::string& call) { return "<tool_call>\n" + call + "\n</tool_call>"; }

TEST(CallFormatsTest, JsonArgumentsArePassedOnAsWritten) {
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "arguments": {"a" : 1e400,"b":[ ]}})")),
            R"({"a" : 1e400,"b":[ ]})");
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "parameters": {"a": "}"}})")),
            R"({"a": "}"})");
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"arguments": {"a": 1}, "id": "x", "name": "f"})")),
            R"({"a": 1})");
}

TEST(CallFormatsTest, JsonArgumentsInAStringAreDecoded) {
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "arguments": "{\"a\": \"\\n\u00e9\"}"})")),
            R"({"a": "\né"})");
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "arguments": "\ud83d\ude00\ud83d"})")),
            "😀\xEF\xBF\xBD");
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "arguments": ""})")), "{}");
}

TEST(CallFormatsTest, AbsentArgumentsAreAnEmptyObject) {
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f"})")), "{}");
  EXPECT_EQ(Arguments("qwen25", Hermes(R"({"name": "f", "arguments": null})")), "{}");
  EXPECT_EQ(Arguments("mistral", "[TOOL_CALLS]f[ARGS]"), "{}");
  EXPECT_EQ(Arguments("qwen3_coder", "<tool_call><function=f></function></tool_call>"), "{}");
  EXPECT_EQ(Arguments("glm45", "<tool_call>f</tool_call>"), "{}");
  EXPECT_EQ(
      Arguments("deepseekv3",
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n\n"
                "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      "{}");
  EXPECT_EQ(Arguments("gpt-oss", "<|channel|>commentary to=functions.f<|message|><|call|>"), "{}");
  EXPECT_EQ(Arguments("pythonic", "[f()]"), "{}");
}

TEST(CallFormatsTest, HermesAcceptsListsAndRepeatedObjects) {
  for (const char* calls : {R"([{"name": "f"}, {"name": "g"}])", R"({"name": "f"}, {"name": "g"})",
                            "{\"name\": \"f\"}\n{\"name\": \"g\"}"}) {
    const ParsedMessage message = Parse("qwen25", Hermes(calls) + "end");
    ASSERT_EQ(message.calls.size(), 2u) << message.Text();
    EXPECT_EQ(message.calls[1].name, "g");
    EXPECT_EQ(message.content, "end");
  }
}

TEST(CallFormatsTest, HermesForgivesAMissingEndAndBraces) {
  EXPECT_EQ(Parse("qwen25", "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>"),
            Parse("qwen25", Hermes(R"({"name": "f", "arguments": {}})")));
  const ParsedMessage two = Parse("qwen25",
                                  "<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"g\"}\n"
                                  "</tool_call>");
  ASSERT_EQ(two.calls.size(), 2u) << two.Text();
  EXPECT_EQ(two.content, "");
}

TEST(CallFormatsTest, MalformedTextAfterAGoodCallIsContent) {
  const ParsedMessage message =
      Parse("qwen25", Hermes(R"({"name": "f", "arguments": {}}, oops)") + "<tool_call>{bad");
  ASSERT_EQ(message.calls.size(), 1u) << message.Text();
  EXPECT_EQ(message.calls[0].arguments, "{}");
  EXPECT_EQ(message.content, ", oops\n<tool_call>{bad");
}

TEST(CallFormatsTest, TheIdsThatModelsWriteAreKept) {
  EXPECT_EQ(Parse("mistral", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}").calls.at(0).id, "abc");
  EXPECT_EQ(Parse("qwen25", Hermes(R"({"id": "x1", "name": "f"})")).calls.at(0).id, "x1");
  const ParsedMessage kimi = Parse("kimi_k2",
                                   "<|tool_call_begin|>functions.a.b:12<|tool_call_argument_begin|>"
                                   "{}<|tool_call_end|>");
  EXPECT_EQ(kimi.calls.at(0).name, "a.b");
  EXPECT_EQ(kimi.calls.at(0).id, "functions.a.b:12");
}

TEST(CallFormatsTest, JsonWithoutAMarkerCallsOnlyOfferedTools) {
  EXPECT_EQ(Parse("llama3", R"({"name": "f", "parameters": {}})").calls.size(), 1u);
  EXPECT_EQ(Parse("llama3", R"({"name": "Ann", "parameters": {}})").calls.size(), 0u);
  EXPECT_EQ(Parse("llama3", R"(<|python_tag|>{"name": "Ann", "parameters": {}})").calls.size(), 1u);
  EXPECT_EQ(Parse("pythonic", "[f(), Ann()]").calls.size(), 0u);
}

// Parameters in plain text become JSON of the types that the schema allows.
TEST(CallFormatsTest, ParametersAreConvertedByTheSchema) {
  const auto value = [](const std::string& key, const std::string& text) {
    return Arguments("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + text +
                                        "\n</parameter>\n</function>\n</tool_call>");
  };
  EXPECT_EQ(value("text", "12"), R"({"text": "12"})");
  EXPECT_EQ(value("text", "a \"b\"\n\\c\n"), R"({"text": "a \"b\"\n\\c\n"})");
  EXPECT_EQ(value("count", " 12 "), R"({"count": 12})");
  EXPECT_EQ(value("count", "many"), R"({"count": "many"})");
  EXPECT_EQ(value("ratio", "12345678901234567890.5"), R"({"ratio": 12345678901234567890.5})");
  EXPECT_EQ(value("ratio", "3"), R"({"ratio": 3})");
  EXPECT_EQ(value("flag", "true"), R"({"flag": true})");
  EXPECT_EQ(value("flag", "False"), R"({"flag": false})");
  EXPECT_EQ(value("list", "[1, \"a\"]"), R"({"list": [1, "a"]})");
  EXPECT_EQ(value("list", "['a', None]"), R"({"list": ["a", null]})");
  EXPECT_EQ(value("map", "{'a': (1, 2)}"), R"({"map": {"a": [1, 2]}})");
  EXPECT_EQ(value("maybe", "null"), R"({"maybe": null})");
  EXPECT_EQ(value("maybe", "5"), R"({"maybe": "5"})");
  EXPECT_EQ(value("unit", "c"), R"({"unit": "c"})");
  EXPECT_EQ(value("unknown", "5"), R"({"unknown": 5})");
  EXPECT_EQ(value("unknown", "five"), R"({"unknown": "five"})");
}

TEST(CallFormatsTest, ParametersOfSeveralLinesKeepTheirText) {
  const std::string code = "if a < b:\n\treturn \"</parameter\"\n\n";
  const std::string expected = R"({"text": "if a < b:\n\treturn \"</parameter\"\n\n", "count": 1})";
  EXPECT_EQ(Arguments("qwen3_coder", "<function=f>\n<parameter=text>\n" + code +
                                         "\n</parameter>\n<parameter=count>\n1\n</parameter>\n"
                                         "</function>"),
            expected);
  // GLM does not put values on lines of their own.
  EXPECT_EQ(Arguments("glm45", "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>" + code +
                                   "</arg_value><arg_key>count</arg_key><arg_value>1</arg_value>"
                                   "</tool_call>"),
            expected);
}

TEST(CallFormatsTest, MissingEndsOfTagsAreForgiven) {
  EXPECT_EQ(Arguments("qwen3_coder",
                      "<tool_call>\n<function=f>\n<parameter=text>\na\n<parameter=count>\n1\n"
                      "</function>\n</tool_call>"),
            R"({"text": "a", "count": 1})");
  const ParsedMessage message = Parse(
      "qwen3_coder", "<tool_call>\n<function=f>\n<parameter=count>1</parameter>\n</tool_call>");
  EXPECT_EQ(message.calls.at(0).arguments, R"({"count": 1})");
  EXPECT_EQ(message.content, "");
}

// If a limit truncates an output, a part of a value must not look like a complete value.
TEST(CallFormatsTest, ACutCallStaysUnfinished) {
  const std::string open = "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\n";
  EXPECT_EQ(Arguments("qwen3_coder", open, /*complete=*/false), R"({"count": 1)");
  EXPECT_EQ(Arguments("qwen3_coder", open, /*complete=*/true), R"({"count": 1})");
  const std::string value = "<tool_call>\n<function=f>\n<parameter=text>\nrm -rf /tm";
  EXPECT_EQ(Arguments("qwen3_coder", value, /*complete=*/false), R"({"text": "rm -rf /tm)");
  EXPECT_EQ(Arguments("qwen25", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", false),
            "{\"a\": ");
}

TEST(CallFormatsTest, PythonLiteralsBecomeJson) {
  const auto json = [](std::string_view text) {
    return PythonLiteralToJson(text).value_or("malformed");
  };
  EXPECT_EQ(json("'it\\'s' \"a\\x41\\u00e9\""), R"("it'saAé")");
  EXPECT_EQ(json("\"\"\"a\n\"b\"\"\""), R"("a\n\"b")");
  EXPECT_EQ(json("[1, -2.5, 1_000, True, None, (3,), {'a': {}, 1: []},]"),
            R"([1, -2.5, 1000, true, null, [3], {"a": {}, "1": []}])");
  for (const char* bad : {"", "f", "f()", "[1", "{1}", "{'a'}", "'a", "1 2", "--1", "{[]: 1}"})
    EXPECT_EQ(json(bad), "malformed") << bad;
  EXPECT_EQ(json(std::string(100, '[') + std::string(100, ']')), "malformed");
}

TEST(CallFormatsTest, UnknownSchemasAreNoError) {
  const OfferedTools tools(nlohmann::ordered_json::parse(R"([
    5, {}, {"function": 1}, {"function": {}}, {"function": {"name": 1}},
    {"function": {"name": "a", "parameters": []}},
    {"function": {"name": "b", "parameters": {"properties": [], "type": 1}}},
    {"function": {"name": "c", "parameters": {"properties": {
      "loop": {"$ref": "#/properties/loop"}, "none": {"$ref": "#/x"}, "far": {"$ref": "http://x"},
      "all": {"type": ["string", "null", 5]}, "bad": 7}}}}])"));
  EXPECT_TRUE(tools.Has("a") && tools.Has("b") && tools.Has("c"));
  EXPECT_FALSE(tools.Has("d"));
  for (const char* key : {"loop", "none", "far", "bad", "absent"})
    EXPECT_EQ(tools.TypesOf("c", key), 0) << key;
  EXPECT_EQ(tools.TypesOf("c", "all"), kJsonString | kJsonNull);
}

}  // namespace
}  // namespace switchyard
