#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "grammar/tool_calls.h"
#include "server/api/chat_fields.h"
#include "server/api/grammar_fields.h"

namespace switchyard {
namespace {

constexpr std::string_view kHarmonyTurn = "<|start|>assistant";
constexpr std::string_view kHarmonyCall = "<|channel|>commentary to=functions.";
constexpr std::string_view kFinalChannel = "<|channel|>final<|message|>";

// Converts a call format to the form that the grammar library takes. nullopt if the format does not
// write parameters as JSON, or has no marker before the parameters.
std::optional<ToolCallFormat> GrammarOf(const CallFormat& calls, const SpecialTokens& special) {
  // A list of JSON objects between two markers.
  const auto list = [](std::string open, std::string close) {
    return ToolCallFormat{.open = std::move(open),
                          .head = "{\"name\": ",
                          .between = ", \"arguments\": ",
                          .tail = "}",
                          .separator = ", ",
                          .close = std::move(close)};
  };
  ToolCallFormat format;
  if (calls.name == "qwen25") {
    format = {.head = "<tool_call>\n{\"name\": ",
              .between = ", \"arguments\": ",
              .tail = "}\n</tool_call>",
              .separator = "\n"};
  } else if (calls.name == "llama3") {
    format = {.head = "{\"name\": ",
              .between = ", \"parameters\": ",
              .tail = "}",
              .separator = "; ",
              .trigger = "<|python_tag|>",
              .leading = true};
  } else if (calls.name == "mistral") {
    const bool named = std::ranges::any_of(special, [](const auto& s) {
      return s.first == "[ARGS]";  // only Mistral's tokenizers since v11 have this token
    });
    format = named ? ToolCallFormat{.head = "[TOOL_CALLS]", .between = "[ARGS]", .quoted = false}
                   : list("[TOOL_CALLS][", "]");
  } else if (calls.name == "hunyuan_a13b") {
    format = list("<tool_calls>[", "]</tool_calls>");
  } else if (calls.name == "granite") {
    format = list("<|tool_call|>[", "]");
  } else if (calls.name == "longcat") {
    format = {.head = "<longcat_tool_call>\n{\"name\": ",
              .between = ", \"arguments\": ",
              .tail = "}\n</longcat_tool_call>"};
  } else if (calls.name == "deepseekv3") {
    format = {.open = "<｜tool▁calls▁begin｜>",
              .head = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
              .between = "\n```json\n",
              .tail = "\n```<｜tool▁call▁end｜>",
              .separator = "\n",
              .close = "<｜tool▁calls▁end｜>",
              .quoted = false,
              .excluded = {"<｜tool▁call▁begin｜>"}};
  } else if (calls.name == "deepseekv31") {
    format = {.open = "<｜tool▁calls▁begin｜>",
              .head = "<｜tool▁call▁begin｜>",
              .between = "<｜tool▁sep｜>",
              .tail = "<｜tool▁call▁end｜>",
              .close = "<｜tool▁calls▁end｜>",
              .quoted = false,
              .excluded = {"<｜tool▁call▁begin｜>"}};
  } else if (calls.name == "kimi_k2") {
    format = {.open = "<|tool_calls_section_begin|>",
              .head = "<|tool_call_begin|>functions.",
              .between = "<|tool_call_argument_begin|>",
              .tail = "<|tool_call_end|>",
              .close = "<|tool_calls_section_end|>",
              .quoted = false,
              .indexed = true,
              .excluded = {"<|tool_call_begin|>"}};
  } else if (calls.IsHarmony()) {
    format = {.head = std::string(kHarmonyCall),
              .between = " <|constrain|>json<|message|>",
              .quoted = false};
  } else {
    return std::nullopt;
  }
  format.special = special;
  if (!format.leading) format.trigger = calls.begin;
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

// The text of a message of a harmony model.
Json HarmonyText(const SpecialTokens& special) {
  return TextUntil({"<|end|>", "<|start|>", "<|channel|>", "<|message|>"}, special);
}

// Format of messages in the channel analysis, each followed by the beginning of the next message.
// `preambles`: also allows messages in the channel commentary that have no recipient. Such messages
// precede calls.
Json HarmonyReasoning(const SpecialTokens& special, bool preambles) {
  Json messages = Json::array();
  for (const char* header :
       {"<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>"}) {
    if (!messages.empty() && !preambles) break;
    Json message = MarkedText(header, special);
    Append(HarmonyText(special), &message);
    Append(MarkedText(fmt::format("<|end|>{}", kHarmonyTurn), special), &message);
    messages.push_back(SequenceOf(std::move(message)));
  }
  Json any = {{"type", "or"}, {"elements", std::move(messages)}};
  return Json::array({{{"type", "star"}, {"content", std::move(any)}}});
}

// Whether the output of a harmony model begins with the header of a message.
bool BeginsMessage(const PromptEnd& prompt) {
  return prompt.message.empty() && TrimMarkupSpace(prompt.header).ends_with(kHarmonyTurn);
}

// Options of the part before the constrained part of the output.
struct ReasoningPrefixOptions {
  bool separate = true;    // the response separates reasoning and content
  bool preambles = false;  // harmony only: messages of the channel commentary may precede calls
  std::string_view excluded{};  // a marker that reasoning cannot contain; may be empty
};

Json ReasoningPrefix(const OutputFormat& model, const PromptEnd& prompt,
                     const SpecialTokens& special, const ReasoningPrefixOptions& options) {
  using Start = ReasoningSplitter::Start;
  Json elements = Json::array();
  if (IsHarmony(model))
    return BeginsMessage(prompt) ? HarmonyReasoning(special, options.preambles) : elements;
  if (!model.reasoning) return elements;
  const ReasoningFormat& format = *model.reasoning;
  const Start start = ReasoningStart(format, prompt);
  if (start == Start::kContent || (start == Start::kUndecided && !options.separate))
    return elements;
  std::vector<std::string> ends = {std::string(format.close)};
  if (!options.excluded.empty()) ends.emplace_back(options.excluded);
  if (start == Start::kUndecided) elements = MarkedText(format.open, special);
  Append(TextUntil(ends, special), &elements);
  Append(MarkedText(format.close, special), &elements);
  elements.push_back(LineEnds());
  if (start == Start::kReasoning) return elements;
  return Json::array({{{"type", "optional"}, {"content", SequenceOf(std::move(elements))}}});
}

// Grammar of calls without constraints: the marker that begins a call, then any tokens. Used where
// the model may call offered tools instead of writing constrained content.
std::string FreeCalls(const CallFormat& calls, const SpecialTokens& special) {
  if (!calls.IsHarmony() && calls.begin.empty()) return "";
  Json elements = MarkedText(calls.IsHarmony() ? kHarmonyCall : calls.begin, special);
  elements.push_back({{"type", "any_tokens"}, {"exclude_tokens", Json::array()}});
  return Tag(std::move(elements));
}

// The tools of a request, and how the model writes their calls.
struct RequestCalls {
  Json tools;
  ToolCallFormat format;
  bool parallel;
  JsonSpace space;
};

RequestCalls CallsOf(const Service& service, const Fields& f, const CallFormat& calls,
                     const SpecialTokens& special) {
  Json tools = *f.Find("tools");
  for (Json& tool : tools) {
    Json& function = tool["function"];
    function["strict"] = Fields(function).Bool("strict", false);
  }
  return {.tools = std::move(tools),
          .format = *GrammarOf(calls, special),
          .parallel = f.Bool("parallel_tool_calls", true) && !calls.IsHarmony(),
          .space = service.grammars ? service.grammars->space() : JsonSpace::kAny};
}

// Grammar of an output that consists of calls only. `name`: the only tool that may be called;
// nullopt: all tools may be called.
GrammarSource OnlyCalls(const RequestCalls& r, MatchedCalls matched,
                        const std::optional<std::string>& name = std::nullopt) {
  try {
    return ToolCallGrammar(r.tools, name, r.parallel, r.format, r.space, matched);
  } catch (const Error& e) {
    throw InvalidField("tools", "tools: {}", e.what());
  }
}

GrammarSource TextWithCalls(const RequestCalls& r) {
  try {
    return TextWithCallsGrammar(r.tools, r.parallel, r.format, r.space);
  } catch (const Error& e) {
    throw InvalidField("tools", "tools: {}", e.what());
  }
}

// Finds the grammar of one request.
class ChatConstrainer {
 public:
  ChatConstrainer(const Service& service, const Fields& f, const PromptEnd& prompt)
      : service_(service),
        f_(f),
        prompt_(prompt),
        model_(service.model.output_format),
        special_(SpecialsOf(model_, *service.model.tokenizer)),
        choice_(ParseToolChoice(f)),
        separate_(f.Bool("separate_reasoning", true)),
        harmony_(IsHarmony(model_)),
        message_(harmony_ && BeginsMessage(prompt)) {
    may_call_ =
        !choice_.IsForced() && model_.calls && ParseOfferedTools(f) && (message_ || !harmony_);
    strict_ = may_call_ && service.grammars && HasStrictTools(f) && GrammarOf(*model_.calls, {});
  }

  // nullopt: the output is not constrained.
  std::optional<OutputConstraint> Find() const {
    auto constraint = FindConstraint(service_, f_);
    if (choice_.IsForced()) return Forced();  // forced calls: the output has no content
    if (!constraint && !strict_) return std::nullopt;
    if (!constraint && !harmony_) return OutputConstraint{"tools", StrictText()};
    if (!constraint)
      constraint = {.field = "tools",
                    .source = {GrammarSource::Kind::kStructuralTag, Tag(HarmonyText(special_))}};
    GrammarSource& source = constraint->source;
    source.prefix = PrefixGrammar({.separate = separate_,
                                   .preambles = strict_,
                                   .excluded = strict_ ? model_.calls->begin : ""});
    if (message_) source.opening = Tag(MarkedText(kFinalChannel, special_));
    if (may_call_ && prompt_.message.empty()) source.alternative = CallsInstead();
    return constraint;
  }

 private:
  OutputConstraint Forced() const {
    const CallFormat& calls = *ForcedCalls(model_);
    const auto name =
        choice_.kind == ToolChoice::Kind::kNamed ? std::optional(choice_.name) : std::nullopt;
    GrammarSource source =
        OnlyCalls(CallsOf(service_, f_, calls, special_), MatchedCalls::kAll, name);
    source.prefix = PrefixGrammar({.separate = separate_, .excluded = calls.begin});
    return {"tool_choice", std::move(source)};
  }

  // Any text in which calls of strict tools have matching arguments.
  GrammarSource StrictText() const {
    RequestCalls calls = CallsOf(service_, f_, *model_.calls, special_);
    // The trigger of a call also ends reasoning, so no prefix is needed.
    if (!calls.format.leading) return TextWithCalls(calls);
    // Calls may begin the content, which follows the reasoning. The content cannot contain the
    // marker that ends the reasoning.
    std::string prefix = PrefixGrammar({.separate = separate_});
    if (!prefix.empty()) calls.format.excluded.emplace_back(model_.reasoning->close);
    GrammarSource source = TextWithCalls(calls);
    source.prefix = std::move(prefix);
    return source;
  }

  // Calls of offered tools instead of content.
  std::string CallsInstead() const {
    if (!strict_ || (!harmony_ && model_.calls->begin.empty()))
      return FreeCalls(*model_.calls, special_);
    return OnlyCalls(CallsOf(service_, f_, *model_.calls, special_), MatchedCalls::kStrict).text;
  }

  std::string PrefixGrammar(const ReasoningPrefixOptions& options) const {
    return Tag(ReasoningPrefix(model_, prompt_, special_, options));
  }

  const Service& service_;
  const Fields& f_;
  const PromptEnd& prompt_;
  const OutputFormat& model_;
  const SpecialTokens special_;
  const ToolChoice choice_;
  const bool separate_;
  const bool harmony_, message_;  // message_: the output begins with the header of a message
  bool may_call_ = false;         // the model may call offered tools
  bool strict_ = false;           // some offered tools are strict: arguments must match
};

}  // namespace

const CallFormat* ForcedCalls(const OutputFormat& model) {
  if (IsHarmony(model)) return FindCallFormat("gpt-oss");
  return model.calls && GrammarOf(*model.calls, {}) ? model.calls : FindCallFormat("llama3");
}

void ConstrainChat(const Service& service, const Fields& f, const PromptEnd& prompt,
                   GenerationSpec* spec) {
  if (const auto constraint = ChatConstrainer(service, f, prompt).Find())
    spec->grammar = CompileConstraint(service, *constraint);
}

}  // namespace switchyard
