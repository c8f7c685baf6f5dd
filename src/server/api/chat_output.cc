#include "server/api/chat_output.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/api/chat_fields.h"
#include "server/api/grammar_fields.h"
#include "text/chat/chat_template.h"

namespace switchyard {

using Kind = OutputEvent::Kind;

std::shared_ptr<const OutputPlan> PlanOutput(const ServedModel& model, const Fields& f,
                                             PromptEnd prompt) {
  OutputPlan plan{.format = model.output_format,
                  .prompt = std::move(prompt),
                  .tools = ParseOfferedTools(f),
                  .parallel_calls = f.Bool("parallel_tool_calls", true),
                  .separate_reasoning = f.Bool("separate_reasoning", true),
                  .stream_reasoning = f.Bool("stream_reasoning", true),
                  .include_reasoning = f.Bool("include_reasoning", true)};
  if (!plan.tools) plan.format.calls = nullptr;
  plan.forced_calls = ParseToolChoice(f).IsForced();
  if (plan.forced_calls) plan.format.calls = ForcedCalls(model.output_format);
  const ReasoningFormat*& reasoning = plan.format.reasoning;
  if (!reasoning) plan.separate_reasoning = false;
  // If reasoning is not separated, it stays in the content with its markers. Harmony is parsed
  // nevertheless, because its markers surround the content too.
  if (reasoning && !plan.separate_reasoning && !reasoning->IsHarmony()) reasoning = nullptr;
  if (!plan.format.calls && !reasoning) return nullptr;
  return std::make_shared<const OutputPlan>(std::move(plan));
}

void RequestMarkers(const OutputPlan& plan, const Tokenizer& tokenizer, GenerationSpec* spec) {
  for (const std::string_view marker : plan.format.Markers()) {
    const auto id = tokenizer.TokenToId(marker);
    if (id && tokenizer.IsSpecial(*id)) spec->shown_special_tokens.push_back(*id);
  }
  spec->token_ends = true;
}

ChatOutput::ChatOutput(const OutputPlan& plan)
    : plan_(plan), parser_(plan.format, plan.tools, plan.prompt) {}

std::vector<OutputEvent> ChatOutput::Push(const std::string& text,
                                          const std::vector<uint32_t>& token_ends,
                                          FinishReason finish) {
  const std::string_view view = text;
  size_t begin = 0;
  for (const uint32_t end : token_ends) {
    const bool before = parser_.reasoning();
    parser_.Push(view.substr(begin, end - begin));
    begin = end;
    if (before || parser_.reasoning()) ++reasoning_tokens_;
  }
  parser_.Push(view.substr(begin));
  std::vector<OutputEvent> events;
  for (OutputEvent& event : parser_.Take()) Take(std::move(event), &events);
  if (finish != FinishReason::kNone) {
    const bool complete = finish == FinishReason::kStop;
    parser_.Finish(complete);
    for (OutputEvent& event : parser_.Take()) {
      // Drops the beginning of a forced call, if a token limit cut the call before its name was
      // complete.
      if (event.kind == Kind::kContent && plan_.forced_calls && !complete) continue;
      Take(std::move(event), &events);
    }
  }
  const bool ended = finish != FinishReason::kNone || !parser_.reasoning();
  if (ended && !held_reasoning_.empty())
    events.insert(events.begin(), {.kind = Kind::kReasoning,
                                   .call = -1,
                                   .text = std::exchange(held_reasoning_, {}),
                                   .call_id = {}});
  return events;
}

void ChatOutput::Take(OutputEvent event, std::vector<OutputEvent>* events) {
  if (event.kind == Kind::kReasoning) {
    if (!plan_.separate_reasoning) {
      event.kind = Kind::kContent;
      after_reasoning_ = true;
    } else if (!plan_.include_reasoning) {
      return;
    } else if (!plan_.stream_reasoning) {
      held_reasoning_ += event.text;
      return;
    }
  } else if (event.kind == Kind::kContent && std::exchange(after_reasoning_, false)) {
    event.text = "\n" + event.text;
  }
  if (event.call > 0 && !plan_.parallel_calls) return;
  if (event.kind == Kind::kCallBegin) {
    ++sent_calls_;
    if (event.call_id.empty()) event.call_id = NewCallId(plan_.format);
  }
  events->push_back(std::move(event));
}

std::string NewCallId(const OutputFormat& format) {
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::mt19937_64 random{std::random_device{}()};
  const bool nine = format.calls && format.calls->ids == CallFormat::Ids::kNineChars;
  std::string id = nine ? "" : "call_";
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  for (int i = 0; i < (nine ? 9 : 24); ++i) id += kLetters[letter(random)];
  return id;
}

RenderedPrompt ChatPrompt(const ServedModel& model, const Json& body, size_t limit) {
  const Fields f(body);
  const Json* messages = f.Find("messages");
  if (!messages) throw InvalidField("messages", "messages is missing");
  CheckChatFields(f);
  ChatInput chat{.messages = *messages};
  const bool hide_tools = ParseToolChoice(f).kind == ToolChoice::Kind::kNone;
  const Json* tools = f.Find("tools");
  if (tools && !hide_tools && *tools != Json::array()) chat.tools = *tools;
  chat.kwargs = TemplateVariables(f);
  chat.continue_final_message = f.Bool("continue_final_message", false);
  chat.add_generation_prompt = f.Bool("add_generation_prompt", !chat.continue_final_message);
  const bool special = f.Bool("add_special_tokens", false);
  try {
    jinja::Rendered rendered = model.chat_template.Apply(chat);
    std::vector<int32_t> ids = EncodeRendered(*model.tokenizer, rendered, special, limit);
    PromptEnd end = EndOf(rendered, chat.continue_final_message);
    return {.text = std::move(rendered.text), .ids = std::move(ids), .end = std::move(end)};
  } catch (const Error& e) {
    throw RequestError(e.kind(), "messages", e.what());
  }
}

}  // namespace switchyard
