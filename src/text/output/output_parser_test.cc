// Every format: the same message for every cut of the text into pieces, and text without calls
// unchanged.
#include "text/output/output_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "text/output/output_test_message.h"

namespace switchyard {
namespace {

ParsedMessage Whole(const ParseCase& options, std::string_view text) {
  return ParsePieces(options, std::vector{text});
}

// Compares the whole text with two pieces cut at every byte, single bytes, and random pieces.
ParsedMessage ParseAllWays(const ParseCase& options, const std::string& text) {
  SCOPED_TRACE(options.calls + " " + options.reasoning + ": " + text);
  ParsedMessage whole = Whole(options, text);
  const std::string_view view = text;
  const auto expect = [&](const std::vector<std::string_view>& pieces, const std::string& how) {
    const ParsedMessage message = ParsePieces(options, pieces);
    EXPECT_EQ(message, whole) << how << "\n" << message.Text() << "\n" << whole.Text();
  };
  for (size_t cut = 0; cut <= text.size(); ++cut)
    expect({view.substr(0, cut), view.substr(cut)}, "cut at " + std::to_string(cut));
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(view.substr(i, 1));
  expect(bytes, "bytes");
  std::mt19937 random(static_cast<uint32_t>(text.size()));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 7;
      pieces.push_back(view.substr(at, length));
      at += length;
    }
    expect(pieces, "random pieces " + std::to_string(round));
  }
  return whole;
}

// One call of get_weather with {"city": "Löndon"}, and a call of f with two parameters, as each
// format writes them.
struct FormatSample {
  const char* calls;
  std::string weather, both;
  const char* id = "";  // id of the first call
};

const std::string kDeepSeekBegin = "<｜tool▁calls▁begin｜>", kDeepSeekEnd = "<｜tool▁calls▁end｜>";

std::vector<FormatSample> Samples() {
  return {
      {"qwen25",
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Löndon\"}}\n"
       "</tool_call>",
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Löndon\"}}\n"
       "</tool_call>\n<tool_call>\n{\"arguments\": {\"text\": \"a</tool_call>\\n\", \"count\": 3}, "
       "\"name\": \"f\"}\n</tool_call>"},
      {"longcat",
       "<longcat_tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Löndon\"}}\n"
       "</longcat_tool_call>",
       "<longcat_tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Löndon\"}}\n"
       "</longcat_tool_call><longcat_tool_call>\n{\"name\": \"f\", \"arguments\": "
       "{\"text\": \"a</tool_call>\\n\", \"count\": 3}}\n</longcat_tool_call>"},
      {"hunyuan_a13b",
       R"(<tool_calls>[{"name": "get_weather", "arguments": {"city": "Löndon"}}]</tool_calls>)",
       R"(<tool_calls>[{"name": "get_weather", "arguments": {"city": "Löndon"}}, )"
       R"({"name": "f", "arguments": {"text": "a</tool_call>\n", "count": 3}}]</tool_calls>)"},
      {"granite", R"(<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Löndon"}}])",
       R"(<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Löndon"}}, )"
       R"({"name": "f", "arguments": {"text": "a</tool_call>\n", "count": 3}}])"},
      {"llama3", R"({"name": "get_weather", "parameters": {"city": "Löndon"}})",
       R"(<|python_tag|>{"name": "get_weather", "parameters": {"city": "Löndon"}}; )"
       R"({"name": "f", "parameters": {"text": "a</tool_call>\n", "count": 3}})"},
      {"mistral", R"([TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Löndon"}}])",
       R"([TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Löndon"}}, )"
       R"({"name": "f", "arguments": {"text": "a</tool_call>\n", "count": 3}}])"},
      {"mistral", R"([TOOL_CALLS]get_weather[ARGS]{"city": "Löndon"})",
       R"([TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "Löndon"})"
       R"([TOOL_CALLS]f{"text": "a</tool_call>\n", "count": 3})"},
      {"deepseekv3",
       kDeepSeekBegin +
           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
           "{\"city\": \"Löndon\"}\n```<｜tool▁call▁end｜>" +
           kDeepSeekEnd,
       kDeepSeekBegin +
           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
           "{\"city\": \"Löndon\"}\n```<｜tool▁call▁end｜>\n"
           "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
           "{\"text\": \"a</tool_call>\\n\", \"count\": 3}\n```<｜tool▁call▁end｜>" +
           kDeepSeekEnd},
      {"deepseekv31",
       kDeepSeekBegin +
           "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Löndon\"}"
           "<｜tool▁call▁end｜>" +
           kDeepSeekEnd,
       kDeepSeekBegin +
           "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Löndon\"}"
           "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
           "{\"text\": \"a</tool_call>\\n\", \"count\": 3}<｜tool▁call▁end｜>" +
           kDeepSeekEnd},
      {"deepseekv32",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"city\" string=\"true\">Löndon</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "</｜DSML｜function_calls>",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"city\" string=\"true\">Löndon</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"text\" "
       "string=\"true\">a</tool_call>\n"
       "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"count\" "
       "string=\"false\">3</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"deepseekv4",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"city\" string=\"true\">Löndon</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "</｜DSML｜tool_calls>",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter "
       "name=\"city\">Löndon</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
       "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"text\" string=\"true\">a</tool_call>\n"
       "</｜DSML｜parameter><｜DSML｜parameter name=\"count\" string=\"false\"> 3 "
       "</｜DSML｜parameter>"
       "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
      {"kimi_k2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Löndon\"}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Löndon\"}<|tool_call_end|>"
       "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>"
       "{\"text\": \"a</tool_call>\\n\", \"count\": 3}<|tool_call_end|><|tool_calls_section_end|>",
       "functions.get_weather:0"},
      {"solar_open",
       "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>get_weather<|tool_call:args|>"
       "{\"city\": \"Löndon\"}<|tool_call:end|><|calls|>",
       "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>get_weather<|tool_call:args|>"
       "{\"city\": \"Löndon\"}<|tool_call:end|><|tool_call:begin|>c3<|tool_call:name|>f"
       "<|tool_call:args|>{\"text\": \"a</tool_call>\\n\", \"count\": 3}<|tool_call:end|>",
       "a1b2"},
      {"qwen3_coder",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nLöndon\n</parameter>\n</function>\n"
       "</tool_call>",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nLöndon\n</parameter>\n</function>\n"
       "</tool_call>\n<tool_call>\n<function=f>\n<parameter=text>\na</tool_call>\n\n</parameter>\n"
       "<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>"},
      {"minimax-m2",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Löndon"
       "</parameter>\n</invoke>\n</minimax:tool_call>",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Löndon"
       "</parameter>\n</invoke>\n<invoke name=\"f\"><parameter name=\"text\">\na</tool_call>\n\n"
       "</parameter><parameter name=\"count\">3</parameter></invoke>\n</minimax:tool_call>"},
      {"glm45",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Löndon</arg_value>\n"
       "</tool_call>",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Löndon</arg_value>\n"
       "</tool_call>\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a</tool_call>\n</arg_value>"
       "\n<arg_key>count</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"},
      {"pythonic", "[get_weather(city=\"Löndon\")]",
       "<|python_start|>[get_weather(city='Löndon'), f(text=\"a</tool_call>\\n\", count=3)]"
       "<|python_end|>"},
      {"gpt-oss",
       "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
       "{\"city\": \"Löndon\"}<|call|>",
       "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
       "{\"city\": \"Löndon\"}<|call|><|start|>assistant<|channel|>commentary to=functions.f"
       "<|message|>{\"text\": \"a</tool_call>\\n\", \"count\": 3}"},
  };
}

void ExpectArguments(const ParsedMessage::Call& call, const std::string& name, const char* json) {
  EXPECT_EQ(call.name, name);
  EXPECT_TRUE(call.ended);
  const auto parsed = nlohmann::json::parse(call.arguments, nullptr, false);
  EXPECT_EQ(parsed, nlohmann::json::parse(json)) << call.arguments;
}

TEST(OutputParserTest, EveryFormatGivesItsCallsForEveryCut) {
  for (const FormatSample& sample : Samples()) {
    SCOPED_TRACE(sample.calls);
    const ParseCase options{.calls = sample.calls};
    const ParsedMessage one = ParseAllWays(options, sample.weather);
    ASSERT_EQ(one.calls.size(), 1u) << one.Text();
    EXPECT_EQ(one.content, "");
    EXPECT_EQ(one.calls[0].id, sample.id);
    ExpectArguments(one.calls[0], "get_weather", R"({"city": "Löndon"})");

    const ParsedMessage two = ParseAllWays(options, sample.both);
    ASSERT_EQ(two.calls.size(), 2u) << two.Text();
    EXPECT_EQ(two.content, "");
    ExpectArguments(two.calls[0], "get_weather", R"({"city": "Löndon"})");
    ExpectArguments(two.calls[1], "f", R"({"text": "a</tool_call>\n", "count": 3})");
  }
}

TEST(OutputParserTest, EveryFormatHasASample) {
  const std::vector<FormatSample> samples = Samples();
  for (const CallFormat& format : CallFormats())
    EXPECT_TRUE(std::ranges::any_of(samples, [&](const FormatSample& sample) {
      return sample.calls == format.name;
    })) << format.name;
}

TEST(OutputParserTest, TextAroundCallsIsContentWithoutTheSpaceBetween) {
  for (const FormatSample& sample : Samples()) {
    const std::string format = sample.calls;
    if (format == "gpt-oss") continue;  // gpt-oss has no text outside messages
    const bool at_start = format == "llama3" || format == "pythonic";
    // After other text, llama3 and pythonic recognize calls only with their marker.
    const std::string& call = at_start ? sample.both : sample.weather;
    const ParsedMessage message =
        ParseAllWays({.calls = format}, "Let me see.\n\n" + call + "\n Done.\n");
    EXPECT_EQ(message.calls.size(), at_start ? 2u : 1u) << message.Text();
    EXPECT_EQ(message.content, "Let me see.\n Done.\n") << format;
  }
}

// Text that is not a call, although it begins like a call or resembles one.
TEST(OutputParserTest, MalformedCallsStayText) {
  const std::vector<std::string> texts = {
      "",
      " \n\t ",
      "Plain text, 𝔘nicode ▁ and <angle> [brackets] {braces}.\n\n",
      "<tool_call>",
      "<tool_call>\n{\"name\": \"f\"",
      "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
      "<tool_call>{\"arguments\": {}}</tool_call>",
      "<tool_call>no json</tool_call>",
      "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
      "The tag <tool_call> begins a call, </tool_call> ends it.",
      "<tool_call>[]</tool_call>",
      "<tool_calls>",
      "<tool_calls>[]</tool_calls>",
      "<longcat_tool_call>no json</longcat_tool_call>",
      "<|tool_call|>[{\"name\": 5}]",
      "<|tool_call|> text",
      "<|tool_calls|><|tool_call:begin|>a1<|tool_call:args|>{}",
      "<function=",
      "<function=a b>",
      "<tool_call><function></function></tool_call>",
      "<minimax:tool_call>",
      "<minimax:tool_call><invoke>x</invoke></minimax:tool_call>",
      "<｜DSML｜tool_calls>",
      "<｜DSML｜function_calls>\n<｜DSML｜invoke name=a b>",
      "<｜DSML｜invoke name=\"f\">",
      "[TOOL_CALLS]",
      "[TOOL_CALLS] some text",
      "[TOOL_CALLS][{\"name\": []}]",
      "[TOOL_CALLS]name[CALL_ID]id",
      "<｜tool▁calls▁begin｜>text<｜tool▁calls▁end｜>",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function",
      "<｜tool▁call▁begin｜><｜tool▁sep｜>",
      "<|tool_calls_section_begin|> <|tool_calls_section_end|>",
      "<|tool_call_begin|><|tool_call_argument_begin|>{}",
      "{\"name\": \"not offered\", \"parameters\": {}}",
      "{\"a\": 1}",
      "[1, 2, 3]",
      "[link](https://example.org)",
      "[f(1)]",
      "[f(text=g())]",
      "[not_offered(a=1)]",
      "<|python_start|>print(1)<|python_end|>",
      "<|python_tag|>import os",
      "</think> text",
      "text <think> text",
      "<thin",
      "◁thin",
  };
  for (const CallFormat& format : CallFormats()) {
    for (const std::string& text : texts) {
      const ParseCase options{.calls = std::string(format.name)};
      const ParsedMessage message = ParseAllWays(options, text);
      // <tool_call>no json</tool_call> is a call without parameters in GLM's format.
      if (format.name == "glm45" && !message.calls.empty()) continue;
      EXPECT_TRUE(message.calls.empty()) << format.name << ": " << text << message.Text();
      EXPECT_EQ(message.content, text) << format.name;
    }
  }
  for (const ReasoningFormat& format : ReasoningFormats()) {
    if (format.always || format.IsHarmony()) continue;
    for (const std::string& text : texts) {
      const ParseCase options{.calls = {}, .reasoning = std::string(format.name)};
      EXPECT_EQ(ParseAllWays(options, text).content, text) << format.name;
    }
  }
}

TEST(OutputParserTest, ReasoningPrecedesContentAndCalls) {
  for (const FormatSample& sample : Samples()) {
    if (std::string(sample.calls) == "gpt-oss") continue;
    const ParseCase options{.calls = sample.calls, .reasoning = "qwen3"};
    for (const char* text : {"<think>\nSunny?\n\nLet me see.\n</think>\n\n",
                             "\n<think>Sunny?\n\nLet me see.</think>"}) {
      const ParsedMessage message = ParseAllWays(options, text + sample.weather);
      EXPECT_EQ(message.reasoning, "Sunny?\n\nLet me see.");
      EXPECT_EQ(message.content, "");
      ASSERT_EQ(message.calls.size(), 1u) << message.Text();
      ExpectArguments(message.calls[0], "get_weather", R"({"city": "Löndon"})");
    }
  }
}

TEST(OutputParserTest, EveryReasoningFormatIsSeparatedForEveryCut) {
  for (const ReasoningFormat& format : ReasoningFormats()) {
    const std::string open(format.open), close(format.close);
    std::vector<std::string> texts = {open + "\nSunny?\n" + close + "\n\nYes"};
    if (format.always) texts.push_back("Sunny?" + close + "Yes");
    if (format.IsHarmony())
      texts = {
          "<|channel|>analysis<|message|>Sunny?<|end|><|start|>assistant<|channel|>final"
          "<|message|>Yes<|return|>"};
    for (const std::string& text : texts) {
      const ParsedMessage message =
          ParseAllWays({.calls = {}, .reasoning = std::string(format.name)}, text);
      EXPECT_EQ(message.reasoning, "Sunny?") << format.name << ": " << text;
      EXPECT_EQ(message.content, "Yes") << format.name << ": " << text;
    }
  }
}

// Harmony has no text outside messages, so parts of a malformed call are dropped or content.
TEST(OutputParserTest, MalformedHarmonyCallsAreNoCalls) {
  for (const char* text :
       {"<|channel|>commentary to=functions.<|message|>{}<|call|>",
        "<|channel|>commentary to=<|message|>{}<|call|>", "<|channel|><|message|><|call|>",
        "<|start|><|start|><|call|>", "<|message|>{}<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f", "<|constrain|>json<|call|>"}) {
    const ParsedMessage message = ParseAllWays({.calls = "gpt-oss", .reasoning = "gpt-oss"}, text);
    EXPECT_TRUE(message.calls.empty()) << text << " " << message.Text();
  }
}

TEST(OutputParserTest, ACutOutputKeepsWhatItHas) {
  for (const FormatSample& sample : Samples()) {
    for (size_t length = 0; length < sample.both.size(); ++length) {
      const std::string text = sample.both.substr(0, length);
      ParseCase options{.calls = sample.calls, .reasoning = {}, .prompt = {}, .complete = false};
      const ParsedMessage cut = Whole(options, text);
      std::vector<std::string_view> bytes;
      for (size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));
      EXPECT_EQ(ParsePieces(options, bytes), cut) << sample.calls << ": " << text;
      for (const ParsedMessage::Call& call : cut.calls) EXPECT_TRUE(call.ended);
    }
  }
}

// Concatenates fragments of markup at random.
TEST(OutputParserTest, RandomMarkupGivesTheSameMessageForEveryCut) {
  std::mt19937 random(1);
  std::vector<std::string> fragments = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        "\"",
                                        "\\",
                                        ":",
                                        ",",
                                        "\n",
                                        " ",
                                        "name",
                                        "\"name\": \"f\"",
                                        "\"arguments\": {",
                                        "null",
                                        "f",
                                        "to=",
                                        "é",
                                        "<",
                                        ">",
                                        "```json",
                                        "```",
                                        "functions.f:0",
                                        "=",
                                        "(",
                                        ")",
                                        "'",
                                        "text",
                                        "count"};
  for (const CallFormat& format : CallFormats()) {
    std::vector<std::string> own = fragments;
    for (const std::string_view marker :
         OutputFormat{&format, FindReasoningFormat("qwen3")}.Markers()) {
      for (int copies = 0; copies < 4; ++copies) own.emplace_back(marker);
    }
    for (const char* tag : {"<function=f>", "</function>", "<parameter=text>", "</parameter>",
                            "<invoke name=\"f\">", "</invoke>", "<parameter name=\"count\">"})
      own.emplace_back(tag);
    for (int round = 0; round < 150; ++round) {
      std::string text;
      for (int i = 0; i < 12; ++i) text += own[random() % own.size()];
      ParseCase options{.calls = std::string(format.name), .reasoning = {}};
      if (round % 2 == 0) options.reasoning = format.IsHarmony() ? "gpt-oss" : "qwen3";
      options.complete = round % 3 != 0;
      ParseAllWays(options, text);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(OutputParserTest, DeepAndLongInputsAreLinear) {
  const std::string deep(100'000, '['), long_text(300'000, 'x');
  for (const CallFormat& format : CallFormats()) {
    const ParseCase options{.calls = std::string(format.name), .reasoning = "qwen3"};
    for (const std::string& begin :
         {std::string(format.begin), std::string("{\"name\": \"f\", \"parameters\": "),
          std::string("[f(list="), std::string("<tool_call>{\"name\": \"f\", \"arguments\": "),
          std::string("<function=f><parameter=list>"),
          std::string("<tool_call>f\n<arg_key>list")}) {
      for (const std::string& body : {deep, long_text}) {
        const std::string text = begin + body;
        std::vector<std::string_view> pieces;
        for (size_t at = 0; at < text.size(); at += 5)
          pieces.push_back(std::string_view(text).substr(at, 5));
        EXPECT_EQ(ParsePieces(options, pieces), Whole(options, text)) << format.name << begin;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
