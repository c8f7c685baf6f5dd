#include "text/output/output_formats.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard {
namespace {

constexpr std::string_view kThink = "<think>", kEndThink = "</think>", kDsml = "｜DSML｜";

const std::vector<std::string_view> kHarmonyMarkers = {
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
    "<|end|>",   "<|call|>",    "<|return|>"};
const std::vector<std::string_view> kDeepSeekMarkers = {
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"};

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

template <typename Format>
const Format* FindNamed(std::span<const Format> formats, std::string_view name) {
  const auto found = std::ranges::find_if(formats, [name](const Format& format) {
    return format.name == name || std::ranges::count(format.aliases, name) > 0;
  });
  return found == formats.end() ? nullptr : &*found;
}

template <typename Format>
std::string Names(std::span<const Format> formats) {
  std::string names;
  for (const Format& format : formats) {
    if (!names.empty()) names += ", ";
    names += format.name;
    for (const std::string_view alias : format.aliases) names += fmt::format(", {}", alias);
  }
  return names;
}

}  // namespace

std::span<const CallFormat> CallFormats() {
  static const std::vector<CallFormat> kFormats = {
      {.name = "deepseekv3",
       .aliases = {"deepseek_v3"},
       .markers = kDeepSeekMarkers,
       .begin = "<｜tool▁calls▁begin｜>",
       .make = MakeDeepSeekV3Parser},
      {.name = "deepseekv31",
       .aliases = {"deepseek_v31"},
       .markers = kDeepSeekMarkers,
       .begin = "<｜tool▁calls▁begin｜>",
       .make = MakeDeepSeekV31Parser},
      {.name = "deepseekv32",
       .aliases = {"deepseek_v32"},
       .markers = {kDsml},
       .begin = "<｜DSML｜function_calls>",
       .make = MakeDeepSeekV32Parser},
      {.name = "deepseekv4",
       .aliases = {"deepseek_v4"},
       .markers = {kDsml},
       .begin = "<｜DSML｜tool_calls>",
       .make = MakeDeepSeekV4Parser},
      {.name = "glm45",
       .aliases = {"glm", "glm47"},
       .markers = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                   "</arg_value>"},
       .begin = "<tool_call>",
       .make = MakeGlm45Parser},
      {.name = "gpt-oss", .aliases = {"openai", "gpt_oss"}, .markers = kHarmonyMarkers},
      {.name = "granite",
       .aliases = {},
       .markers = {"<|tool_call|>"},
       .begin = "<|tool_call|>",
       .make = MakeGraniteParser},
      {.name = "hunyuan_a13b",
       .aliases = {},
       .markers = {"<tool_calls>", "</tool_calls>"},
       .begin = "<tool_calls>",
       .make = MakeHunyuanA13bParser},
      {.name = "kimi_k2",
       .aliases = {},
       .markers = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
                   "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"},
       .begin = "<|tool_calls_section_begin|>",
       .make = MakeKimiK2Parser},
      {.name = "llama3",
       .aliases = {"llama3_json", "llama4_json"},
       .markers = {"<|python_tag|>"},
       .make = MakeLlama3Parser},
      {.name = "longcat",
       .aliases = {},
       .markers = {"<longcat_tool_call>", "</longcat_tool_call>"},
       .begin = "<longcat_tool_call>",
       .make = MakeLongcatParser},
      {.name = "minimax-m2",
       .aliases = {"minimax_m2"},
       .markers = {"<minimax:tool_call>", "</minimax:tool_call>"},
       .begin = "<minimax:tool_call>",
       .make = MakeMinimaxM2Parser},
      {.name = "mistral",
       .aliases = {},
       .markers = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
       .begin = "[TOOL_CALLS]",
       .make = MakeMistralParser,
       .ids = CallFormat::Ids::kNineChars},
      {.name = "pythonic",
       .aliases = {"llama4_pythonic"},
       .markers = {"<|python_start|>", "<|python_end|>"},
       .make = MakePythonicParser},
      {.name = "qwen25",
       .aliases = {"qwen", "hermes", "ernie45", "trinity"},
       .markers = {"<tool_call>", "</tool_call>"},
       .begin = "<tool_call>",
       .make = MakeHermesParser},
      {.name = "qwen3_coder",
       .aliases = {"qwen3_xml", "mimo"},
       .markers = {"<tool_call>", "</tool_call>"},
       .begin = "<tool_call>",
       .make = MakeQwen3CoderParser},
      {.name = "solar_open",
       .aliases = {},
       .markers = {"<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:name|>",
                   "<|tool_call:args|>", "<|tool_call:end|>"},
       .begin = "<|tool_calls|>",
       .make = MakeSolarOpenParser},
  };
  return kFormats;
}

std::span<const ReasoningFormat> ReasoningFormats() {
  static const std::vector<ReasoningFormat> kFormats = {
      {.name = "deepseek-r1",
       .aliases = {"deepseek_r1", "step3", "nano_v3", "nemotron_v3"},
       .open = kThink,
       .close = kEndThink,
       .always = true},
      {.name = "deepseek-v3",
       .aliases = {"deepseek_v3", "deepseek-v4", "deepseek_v4"},
       .open = kThink,
       .close = kEndThink},
      {.name = "ernie45",
       .aliases = {},
       .open = kThink,
       .close = kEndThink,
       .content_open = "<response>",
       .content_close = "</response>"},
      {.name = "glm45", .aliases = {"glm47"}, .open = kThink, .close = kEndThink},
      {.name = "gpt-oss", .aliases = {"openai_gptoss", "gpt_oss"}, .open = {}, .close = {}},
      {.name = "hunyuan_a13b",
       .aliases = {},
       .open = kThink,
       .close = kEndThink,
       .content_open = "<answer>",
       .content_close = "</answer>"},
      {.name = "kimi", .aliases = {}, .open = "◁think▷", .close = "◁/think▷"},
      {.name = "kimi_k2", .aliases = {}, .open = kThink, .close = kEndThink},
      {.name = "minimax",
       .aliases = {"minimax_m2", "minimax-m2"},
       .open = kThink,
       .close = kEndThink,
       .always = true},
      {.name = "mistral", .aliases = {}, .open = "[THINK]", .close = "[/THINK]"},
      {.name = "qwen3", .aliases = {"interns1", "mimo"}, .open = kThink, .close = kEndThink},
      {.name = "qwen3-thinking", .aliases = {}, .open = kThink, .close = kEndThink, .always = true},
      {.name = "seed_oss", .aliases = {}, .open = "<seed:think>", .close = "</seed:think>"},
      {.name = "solar_open",
       .aliases = {},
       .open = "<|think|>",
       .close = "<|end|>",
       .content_open = "<|content|>",
       .content_close = "<|end|>",
       .turn = "<|begin|>assistant"},
  };
  return kFormats;
}

const CallFormat* FindCallFormat(std::string_view name) { return FindNamed(CallFormats(), name); }

const ReasoningFormat* FindReasoningFormat(std::string_view name) {
  return FindNamed(ReasoningFormats(), name);
}

const CallFormat* DetectCallFormat(std::string_view source) {
  const auto named = [](const char* name) { return FindCallFormat(name); };
  if (Has(source, "<|channel|>")) return named("gpt-oss");
  if (Has(source, "<minimax:tool_call>")) return named("minimax-m2");
  if (Has(source, "<|tool_calls_section_begin|>")) return named("kimi_k2");
  if (Has(source, "<｜tool▁calls▁begin｜>"))
    return named(Has(source, "```json") ? "deepseekv3" : "deepseekv31");
  if (Has(source, "<longcat_tool_call>")) return named("longcat");
  if (Has(source, "<|tool_call:begin|>")) return named("solar_open");
  if (Has(source, kDsml)) return named(Has(source, "tool_calls>") ? "deepseekv4" : "deepseekv32");
  if (Has(source, "<tool_call>")) {
    if (Has(source, "<arg_key>")) return named("glm45");
    return named(Has(source, "<function=") && Has(source, "<parameter=") ? "qwen3_coder"
                                                                         : "qwen25");
  }
  if (Has(source, "<tool_calls>")) return named("hunyuan_a13b");
  if (Has(source, "<|tool_call|>")) return named("granite");
  if (Has(source, "[TOOL_CALLS]")) return named("mistral");
  // Some templates of Llama request calls of the form [func_name1(params_name1=params_value1 …)].
  if (Has(source, "(params_name1=params_value1")) return named("pythonic");
  if (Has(source, "\"parameters\": ") && (Has(source, "ipython") || Has(source, "<|python_tag|>")))
    return named("llama3");
  return nullptr;
}

const ReasoningFormat* DetectReasoningFormat(std::string_view source) {
  const auto named = [](const char* name) { return FindReasoningFormat(name); };
  if (Has(source, "<|channel|>")) return named("gpt-oss");
  if (Has(source, "◁think▷")) return named("kimi");
  if (Has(source, "<seed:think>")) return named("seed_oss");
  if (Has(source, "[THINK]")) return named("mistral");
  if (Has(source, "<|tool_call:begin|>") && Has(source, "<|think|>")) return named("solar_open");
  if (!Has(source, kEndThink)) return nullptr;
  // The templates of DeepSeek-V3.1 and later read a variable named `thinking`; those of DeepSeek-R1
  // do not.
  if (Has(source, "<｜Assistant｜>"))
    return named(Has(source, "thinking") ? "deepseek-v3" : "deepseek-r1");
  if (Has(source, "<minimax:tool_call>")) return named("minimax");
  if (Has(source, "<|tool_calls_section_begin|>")) return named("kimi_k2");
  if (Has(source, "<arg_key>")) return named("glm45");
  if (Has(source, "<answer>")) return named("hunyuan_a13b");
  if (Has(source, "<response>")) return named("ernie45");
  return named("qwen3");
}

std::string CallFormatNames() { return Names(CallFormats()); }
std::string ReasoningFormatNames() { return Names(ReasoningFormats()); }

std::vector<std::string_view> OutputFormat::Markers() const {
  std::vector<std::string_view> markers;
  if (calls) markers = calls->markers;
  if (!reasoning) return markers;
  if (reasoning->IsHarmony()) {
    markers.insert(markers.end(), kHarmonyMarkers.begin(), kHarmonyMarkers.end());
  } else {
    markers.insert(markers.end(), {reasoning->open, reasoning->close});
    if (!reasoning->content_open.empty())
      markers.insert(markers.end(), {reasoning->content_open, reasoning->content_close});
    if (!reasoning->turn.empty())
      markers.push_back(reasoning->turn.substr(0, reasoning->turn.find('>') + 1));
  }
  return markers;
}

}  // namespace switchyard
