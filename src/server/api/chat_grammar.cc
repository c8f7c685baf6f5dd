#include "server/api/chat_grammar.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "grammar/tool_calls.h"
#include "server/api/grammar_fields.h"
#include "server/api/tools.h"

namespace switchyard {
namespace {

constexpr std::string_view kHarmonyTurn = "<|start|>assistant";
constexpr std::string_view kHarmonyCall = "<|channel|>commentary to=functions.";
constexpr std::string_view kFinalChannel = "<|channel|>final<|message|>";

// The grammar's form of a call format. nullopt if the format does not write parameters as JSON, or
// has no marker before them.
std::optional<ToolCallFormat> GrammarOf(const CallFormat& calls, const SpecialTokens& special) {
  ToolCallFormat format;
  if (calls.name == "qwen25") {
    format = {.head = "<tool_call>\n{\"name\": ",
              .between = ", \"arguments\": ",
              .tail = "}\n</tool_call>",
              .separator = "\n"};
  } else if (calls.name == "llama3") {
    format = {
        .head = "{\"name\": ", .between = ", \"parameters\": ", .tail = "}", .separator = "; "};
  } else if (calls.name == "mistral") {
    const bool named = std::ranges::any_of(special, [](const auto& s) {
      return s.first == "[ARGS]";  // only Mistral's tokenizers since v11 have this token
    });
    format = named ? ToolCallFormat{.head = "[TOOL_CALLS]", .between = "[ARGS]", .quoted = false}
                   : ToolCallFormat{.open = "[TOOL_CALLS][",
                                    .head = "{\"name\": ",
                                    .between = ", \"arguments\": ",
                                    .tail = "}",
                                    .separator = ", ",
                                    .close = "]"};
  } else if (calls.name == "deepseekv3") {
    format = {.open = "<｜tool▁calls▁begin｜>",
              .head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
              .between = "\n```json\n",
              .tail = "\n```<｜tool▁call▁end｜>",
              .separator = "\n",
              .close = "<｜tool▁calls▁end｜>",
              .quoted = false};
  } else if (calls.name == "deepseekv31") {
    format = {.open = "<｜tool▁calls▁begin｜>",
              .head = "<｜tool▁call▁begin｜>",
              .between = "<｜tool▁sep｜>",
              .tail = "<｜tool▁call▁end｜>",
              .close = "<｜tool▁calls▁end｜>",
              .quoted = false};
  } else if (calls.name == "kimi_k2") {
    format = {.open = "<|tool_calls_section_begin|>",
              .head = "<|tool_call_begin|>functions.",
              .between = "<|tool_call_argument_begin|>",
              .tail = "<|tool_call_end|>",
              .close = "<|tool_calls_section_end|>",
              .quoted = false,
              .indexed = true};
  } else if (calls.IsHarmony()) {
    format = {.head = std::string(kHarmonyCall),
              .between = " <|constrain|>json<|message|>",
              .quoted = false};
  } else {
    return std::nullopt;
  }
  format.special = special;
  return format;
}

SpecialTokens SpecialsOf(const OutputFormat& format, const Tokenizer& tokenizer) {
  SpecialTokens special;
  for (const std::string_view marker : format.Markers()) {
    const auto id = tokenizer.TokenToId(marker);
    if (id && tokenizer.IsSpecial(*id)) special.emplace_back(marker, *id);
  }
  return special;
}

bool IsHarmony(const OutputFormat& format) {
  return (format.calls && format.calls->IsHarmony()) ||
         (format.reasoning && format.reasoning->IsHarmony());
}

// Appends formats to a sequence.
void Append(const Json& formats, Json* elements) {
  elements->insert(elements->end(), formats.begin(), formats.end());
}

std::string Tag(Json elements) {
  if (elements.empty()) return "";
  return Dump({{"type", "structural_tag"}, {"format", SequenceOf(std::move(elements))}});
}

// Line ends that models write after their reasoning.
Json LineEnds() { return {{"type", "regex"}, {"pattern", "\\n{0,2}"}}; }

// Messages of the channel analysis, each with the beginning of the next message.
Json HarmonyReasoning(const SpecialTokens& special) {
  Json message = MarkedText("<|channel|>analysis<|message|>", special);
  Append(TextBefore({"<|end|>", "<|start|>", "<|channel|>", "<|message|>"}, special), &message);
  Append(MarkedText(fmt::format("<|end|>{}", kHarmonyTurn), special), &message);
  return Json::array({{{"type", "star"}, {"content", SequenceOf(std::move(message))}}});
}

// Whether the output of a harmony model begins with the header of a message.
bool BeginsMessage(const PromptEnd& prompt) {
  return prompt.message.empty() && TrimMarkupSpace(prompt.header).ends_with(kHarmonyTurn);
}

// The reasoning before the constrained part of the output. `wanted`: the response returns reasoning
// separately from the content.
Json ReasoningBefore(const OutputFormat& model, const PromptEnd& prompt,
                     const SpecialTokens& special, bool wanted) {
  using Start = ReasoningSplitter::Start;
  Json elements = Json::array();
  if (IsHarmony(model)) return BeginsMessage(prompt) ? HarmonyReasoning(special) : elements;
  if (!model.reasoning) return elements;
  const ReasoningFormat& format = *model.reasoning;
  const Start start = ReasoningStart(format, prompt);
  if (start == Start::kContent || (start == Start::kUndecided && !wanted)) return elements;
  const std::string close(format.close);
  if (start == Start::kUndecided) elements = MarkedText(format.open, special);
  Append(TextBefore({close}, special), &elements);
  Append(MarkedText(close, special), &elements);
  elements.push_back(LineEnds());
  if (start == Start::kReasoning) return elements;
  return Json::array({{{"type", "optional"}, {"content", SequenceOf(std::move(elements))}}});
}

// Calls of offered tools instead of content: any text after the marker of a call.
std::string FreeCalls(const CallFormat& calls, const SpecialTokens& special) {
  if (!calls.IsHarmony() && calls.begin.empty()) return "";
  Json elements = MarkedText(calls.IsHarmony() ? kHarmonyCall : calls.begin, special);
  elements.push_back({{"type", "any_tokens"}, {"exclude_tokens", Json::array()}});
  return Tag(std::move(elements));
}

OutputConstraint ForcedConstraint(const Service& service, const Fields& f, const ToolChoice& choice,
                                  const SpecialTokens& special) {
  const CallFormat& calls = *ForcedCalls(service.model.output_format);
  const bool parallel = f.Bool("parallel_tool_calls", true) && !calls.IsHarmony();
  const auto name =
      choice.kind == ToolChoice::Kind::kNamed ? std::optional(choice.name) : std::nullopt;
  const JsonSpace space = service.grammars ? service.grammars->space() : JsonSpace::kAny;
  try {
    return {"tool_choice",
            ToolCallGrammar(*f.Find("tools"), name, parallel, *GrammarOf(calls, special), space)};
  } catch (const Error& e) {
    throw InvalidField("tools", "tools: {}", e.what());
  }
}

}  // namespace

const CallFormat* ForcedCalls(const OutputFormat& model) {
  if (IsHarmony(model)) return FindCallFormat("gpt-oss");
  return model.calls && GrammarOf(*model.calls, {}) ? model.calls : FindCallFormat("llama3");
}

void ConstrainChat(const Service& service, const Fields& f, const PromptEnd& prompt,
                   GenerationSpec* spec) {
  const OutputFormat& model = service.model.output_format;
  const SpecialTokens special = SpecialsOf(model, *service.model.tokenizer);
  const ToolChoice choice = ParseToolChoice(f);
  auto constraint = FindConstraint(service, f);
  const bool forced = choice.IsForced();
  // A forced call replaces the content, and so also a constraint of the content.
  if (forced) constraint = ForcedConstraint(service, f, choice, special);
  if (!constraint) return;
  Json before = ReasoningBefore(model, prompt, special, f.Bool("separate_reasoning", true));
  GrammarSource& source = constraint->source;
  source.prefix = Tag(std::move(before));
  const bool message = IsHarmony(model) && BeginsMessage(prompt);
  if (!forced && message) source.opening = Tag(MarkedText(kFinalChannel, special));
  const bool may_call = model.calls && ParseOfferedTools(f) && prompt.message.empty();
  if (!forced && may_call && (message || !IsHarmony(model)))
    source.alternative = FreeCalls(*model.calls, special);
  spec->grammar = CompileConstraint(service, *constraint);
}

}  // namespace switchyard
