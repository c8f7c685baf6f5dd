// Reasoning: templates with and without the opening marker in the prompt, thinking switched off,
// continued messages, channels; and detection of formats from templates.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/template.h"
#include "text/output/output_test_message.h"

namespace switchyard {
namespace {

ParsedMessage Parse(const std::string& reasoning, std::string_view text, PromptEnd prompt = {},
                    const std::string& calls = "") {
  return ParsePieces({.calls = calls, .reasoning = reasoning, .prompt = std::move(prompt)},
                     std::vector{text});
}

std::string Shape(const std::string& name) {
  std::ifstream in(std::filesystem::path(SWITCHYARD_TEST_DATA) / "chat/shapes" / (name + ".jinja"),
                   std::ios::binary);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(ReasoningTest, TheModelOrTheTemplateOpensIt) {
  for (const char* format : {"qwen3", "glm45", "deepseek-v3", "kimi_k2"}) {
    const ParsedMessage own = Parse(format, "<think>\na\n</think>\n\nb");
    EXPECT_EQ(own.reasoning, "a");
    EXPECT_EQ(own.content, "b");
    EXPECT_EQ(Parse(format, "a\n</think>\n\nb", {.header = "assistant\n<think>\n", .message = {}}),
              own);
    EXPECT_EQ(Parse(format, "b").content, "b");
  }
  EXPECT_EQ(Parse("kimi", "◁think▷a◁/think▷b").reasoning, "a");
}

TEST(ReasoningTest, SomeModelsAlwaysReason) {
  for (const char* format : {"deepseek-r1", "qwen3-thinking", "minimax"}) {
    EXPECT_EQ(Parse(format, "a</think>b").reasoning, "a");
    EXPECT_EQ(Parse(format, "<think>a</think>b").reasoning, "a");
    EXPECT_EQ(Parse(format, "only").reasoning, "only");
    const ParsedMessage off =
        Parse(format, "\nb", {.header = "assistant\n<think>\n\n</think>\n\n", .message = {}});
    EXPECT_EQ(off.reasoning, "");
    EXPECT_EQ(off.content, "\nb");
  }
}

TEST(ReasoningTest, AContinuedMessageKeepsItsPlace) {
  const auto continued = [](const char* message) {
    return Parse("deepseek-r1", " x</think>y", {.header = "assistant\n", .message = message});
  };
  EXPECT_EQ(continued("Once upon").content, " x</think>y");
  EXPECT_EQ(continued("<think>hm").reasoning, " x");
  EXPECT_EQ(continued("<think>hm</think>So").content, " x</think>y");
}

TEST(ReasoningTest, OnlyTheTemplateOpensIt) {
  jinja::Rendered prompt{.text = "user: <think>", .runs = {{0, 6, true}, {6, 13, false}}};
  EXPECT_EQ(EndOf(prompt, false).header, "");
  EXPECT_EQ(EndOf(prompt, true).message, "<think>");
  prompt.runs = {{0, 6, false}, {6, 13, true}};
  EXPECT_EQ(EndOf(prompt, false).header, "<think>");
}

TEST(ReasoningTest, ACallEndsIt) {
  const std::string call = "<tool_call>{\"name\": \"f\"}</tool_call>";
  EXPECT_EQ(Parse("qwen3", "<think>hm\n" + call, {}, "qwen25").calls.size(), 1u);
  EXPECT_EQ(Parse("qwen3", "<think>hm\n" + call).reasoning, "hm\n" + call);
}

TEST(ReasoningTest, MarkersAroundTheContentAreDropped) {
  const std::map<std::string, std::string> kMarkers = {{"hunyuan_a13b", "answer"},
                                                       {"ernie45", "response"}};
  for (const auto& [format, name] : kMarkers) {
    SCOPED_TRACE(format);
    const std::string open = "<" + name + ">", close = "</" + name + ">";
    const std::string text = "<think>\na\n</think>\n" + open + "\nb\n\nc\n" + close + "\n";
    const ParsedMessage whole = Parse(format, text);
    EXPECT_EQ(whole.reasoning, "a");
    EXPECT_EQ(whole.content, "b\n\nc");
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const std::string_view view = text;
      EXPECT_EQ(ParsePieces({.calls = "", .reasoning = format, .prompt = {}},
                            std::vector{view.substr(0, cut), view.substr(cut)}),
                whole)
          << cut;
    }
    EXPECT_EQ(Parse(format, open + "b" + close).content, "b");
    EXPECT_EQ(Parse(format, open + "b\n").content, "b\n");  // cut by a limit
    EXPECT_EQ(Parse(format, "b " + open).content, "b " + open);
    EXPECT_EQ(Parse(format, "<think>a</think>\n\nb").content, "b");
    EXPECT_EQ(Parse(format, "\n" + open + "\nb\n" + close,
                    {.header = "assistant\n<think>\n\n</think>\n", .message = {}})
                  .content,
              "b");
    const ParsedMessage call = Parse(
        format,
        "<think>a</think>\n" + open + "\n<tool_calls>[{\"name\": \"f\"}]</tool_calls>\n" + close,
        {}, "hunyuan_a13b");
    EXPECT_EQ(call.calls.size(), 1u);
    EXPECT_EQ(call.content, "");
  }
}

TEST(ReasoningTest, MessagesOfSolarOpenAreJoined) {
  const std::string turn = "<|begin|>assistant", thought = "<|think|>a<|end|>" + turn;
  const std::string call =
      "<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>f<|tool_call:args|>{}"
      "<|tool_call:end|><|calls|>";
  const auto parse = [](const std::string& text) {
    const ParsedMessage whole = Parse("solar_open", text, {}, "solar_open");
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const std::string_view view = text;
      EXPECT_EQ(ParsePieces({.calls = "solar_open", .reasoning = "solar_open", .prompt = {}},
                            std::vector{view.substr(0, cut), view.substr(cut)}),
                whole)
          << text << " " << cut;
    }
    return whole;
  };
  const ParsedMessage text = parse(thought + "<|content|>b<|end|>");
  EXPECT_EQ(text.reasoning, "a");
  EXPECT_EQ(text.content, "b");
  EXPECT_EQ(parse("<|content|>b<|end|>").content, "b");
  EXPECT_EQ(parse("b").content, "b");
  for (const std::string& before : {std::string(), thought}) {
    const ParsedMessage called = parse(before + call);
    ASSERT_EQ(called.calls.size(), 1u) << called.Text();
    EXPECT_EQ(called.calls[0].name, "f");
    EXPECT_EQ(called.calls[0].id, "x1");
    EXPECT_EQ(called.content, "");
  }
  const ParsedMessage both = parse(thought + "<|content|>b<|end|>" + turn + call);
  EXPECT_EQ(both.content, "b");
  EXPECT_EQ(both.calls.size(), 1u);
}

TEST(ReasoningTest, MissingEndLeavesAllTextReasoning) {
  const ParsedMessage message = Parse("qwen3", "<think>\nhm\n");
  EXPECT_EQ(message.reasoning, "hm\n");
  EXPECT_EQ(message.content, "");
}

TEST(HarmonyTest, ChannelsAreSeparated) {
  const ParsedMessage message = Parse(
      "gpt-oss",
      "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>analysis<|message|>"
      "more<|end|><|start|>assistant<|channel|>commentary<|message|>First.<|end|>\n"
      "<|start|>assistant<|channel|>final<|message|>Hello<|return|>",
      {.header = "<|end|><|start|>assistant", .message = {}});
  EXPECT_EQ(message.reasoning, "think\nmore");
  EXPECT_EQ(message.content, "First.\nHello");
}

TEST(HarmonyTest, TextWithoutChannelIsContent) {
  EXPECT_EQ(Parse("gpt-oss", "Hello <|world").content, "Hello <|world");
  EXPECT_EQ(Parse("gpt-oss", "<|message|>Hello").content, "Hello");
  EXPECT_EQ(Parse("gpt-oss", "<|channel|>final<|message|>a<|end|>b").content, "a\nb");
  EXPECT_EQ(Parse("gpt-oss", "<|channel|>" + std::string(2000, 'x')).content.size(), 2011u);
}

TEST(HarmonyTest, AnUnfinishedHeaderHasNoText) {
  EXPECT_EQ(Parse("gpt-oss", "<|channel|>analysis").Text(), Parse("gpt-oss", "").Text());
  EXPECT_EQ(Parse("gpt-oss", "<|channel|>final<|message|>a<|end|><|start|>assi").content, "a");
}

TEST(HarmonyTest, ThePromptMayHoldTheHeader) {
  const std::string end = "<|start|>assistant<|channel|>";
  EXPECT_EQ(
      Parse("gpt-oss", " world<|end|>", {.header = end + "final<|message|>", .message = "Hello"})
          .content,
      " world");
  EXPECT_EQ(
      Parse("gpt-oss", "lysis<|message|>hm", {.header = end + "ana", .message = {}}).reasoning,
      "hm");
  EXPECT_EQ(Parse("gpt-oss", "<|channel|>final<|message|>a",
                  {.header = "<|start|>user<|message|>x<|end|>", .message = {}})
                .content,
            "a");
}

TEST(HarmonyTest, CallsOfToolsThatAreNotOfferedAreText) {
  const std::string text =
      "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
  EXPECT_EQ(Parse("gpt-oss", text).content, "{\"a\": 1}");
  const ParsedMessage message = Parse("gpt-oss", text, {}, "gpt-oss");
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].name, "f");
  EXPECT_EQ(message.calls[0].arguments, "{\"a\": 1}");
}

TEST(OutputFormatsTest, TemplatesChooseTheFormats) {
  const std::map<std::string, std::pair<std::string, std::string>> kExpected = {
      {"chatml", {"", ""}},
      {"deepseek_r1", {"deepseekv3", "deepseek-r1"}},
      {"deepseek_v2", {"", ""}},
      {"deepseek_v3", {"deepseekv3", ""}},
      {"deepseek_v3_1", {"deepseekv31", "deepseek-v3"}},
      {"gemma3", {"", ""}},
      {"glm4_5", {"glm45", "glm45"}},
      {"granite_moe", {"granite", ""}},
      {"harmony", {"gpt-oss", "gpt-oss"}},
      {"hermes", {"qwen25", ""}},
      {"hunyuan_a13b", {"qwen25", "hunyuan_a13b"}},
      {"kimi_k2", {"kimi_k2", ""}},
      {"llama3", {"", ""}},
      {"llama3_1", {"llama3", ""}},
      {"llama4", {"llama3", ""}},
      {"minimax_m2", {"minimax-m2", "minimax"}},
      {"mistral_v1", {"", ""}},
      {"mistral_v3", {"mistral", ""}},
      {"mistral_v7", {"mistral", ""}},
      {"olmoe", {"", ""}},
      {"phi4", {"", ""}},
      {"qwen2_5", {"qwen25", ""}},
      {"qwen3", {"qwen25", "qwen3"}},
      {"qwen3_coder", {"qwen3_coder", ""}},
      {"seed_oss", {"", "seed_oss"}},
      {"zephyr", {"", ""}},
  };
  for (const auto& [shape, formats] : kExpected) {
    const std::string source = Shape(shape);
    const CallFormat* calls = DetectCallFormat(source);
    const ReasoningFormat* reasoning = DetectReasoningFormat(source);
    EXPECT_EQ(calls ? calls->name : "", formats.first) << shape;
    EXPECT_EQ(reasoning ? reasoning->name : "", formats.second) << shape;
  }
}

TEST(OutputFormatsTest, NamesOfSglangAndVllmAreKnown) {
  for (const char* name :
       {"deepseekv3",   "deepseekv31", "glm",         "glm45",           "gpt-oss",
        "hermes",       "kimi_k2",     "llama3",      "minimax-m2",      "mistral",
        "pythonic",     "qwen",        "qwen25",      "qwen3_coder",     "deepseek_v3",
        "deepseek_v31", "openai",      "llama3_json", "llama4_pythonic", "minimax_m2",
        "qwen3_xml",    "deepseekv32", "deepseekv4",  "deepseek_v32",    "deepseek_v4",
        "ernie45",      "granite",     "longcat",     "hunyuan_a13b",    "mimo",
        "solar_open"})
    EXPECT_NE(FindCallFormat(name), nullptr) << name;
  for (const char* name :
       {"deepseek-r1", "deepseek-v3",   "glm45",          "gpt-oss",     "kimi",
        "kimi_k2",     "qwen3",         "qwen3-thinking", "minimax",     "step3",
        "deepseek_r1", "openai_gptoss", "minimax_m2",     "deepseek-v4", "deepseek_v4",
        "ernie45",     "hunyuan_a13b",  "mimo",           "nano_v3",     "nemotron_v3"})
    EXPECT_NE(FindReasoningFormat(name), nullptr) << name;
  EXPECT_EQ(FindCallFormat("nonsense"), nullptr);
  EXPECT_EQ(FindReasoningFormat(""), nullptr);
  EXPECT_NE(CallFormatNames().find("qwen25, qwen, hermes"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
