// Splits the text of one output into reasoning, content and tool calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/call_parser.h"
#include "text/output/harmony_parser.h"
#include "text/output/output_events.h"
#include "text/output/output_formats.h"
#include "text/output/reasoning_splitter.h"

namespace switchyard {

namespace jinja {
struct Rendered;
}

// The end of a prompt, which determines whether the output begins within reasoning.
struct PromptEnd {
  std::string header;   // the last text of the chat template, at most 4 KiB
  std::string message;  // the unfinished last message after the header (continue_final_message)
};

// The end of a rendered prompt. Only text of the template, not of messages, becomes the header.
// `continues`: the prompt ends within the last message.
PromptEnd EndOf(const jinja::Rendered& prompt, bool continues);
// The end of a prompt that a client sends as token ids, decoded with special tokens.
PromptEnd EndOf(std::string_view prompt);

// Whether an output begins in reasoning or in content. For formats other than harmony.
ReasoningSplitter::Start ReasoningStart(const ReasoningFormat& format, const PromptEnd& prompt);

// Parses one output that arrives in pieces. The events, with adjacent pieces joined, depend only on
// the text, not on its pieces. Total work is linear. Never throws for any text. One output, one
// thread at a time.
//
// Example, with tools in the format hermes and reasoning in the format qwen3:
//   "<think>\nSunny?\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>"
// gives kReasoning "Sunny?", kCallBegin "f", kArguments {"a": 1}, kCallEnd.
class OutputParser {
 public:
  // `format.calls` is used only with `tools`.
  OutputParser(const OutputFormat& format, std::shared_ptr<const OfferedTools> tools,
               const PromptEnd& prompt);
  OutputParser(const OutputParser&) = delete;
  OutputParser& operator=(const OutputParser&) = delete;

  void Push(std::string_view text);
  // `complete` is true if the model ended the output, and false if a limit did
  // (CallParser::Finish).
  void Finish(bool complete);
  // Returns the events since the last call of Take.
  std::vector<OutputEvent> Take() { return events_.Take(); }

  bool reasoning() const;  // the text so far ends within reasoning
  int32_t calls() const { return events_.calls(); }

 private:
  void PushContent(std::string_view text);

  OutputEvents events_;
  std::shared_ptr<const OfferedTools> tools_;
  std::optional<HarmonyParser> harmony_;  // instead of the following two
  std::optional<ReasoningSplitter> splitter_;
  std::unique_ptr<CallParser> calls_;
};

}  // namespace switchyard
