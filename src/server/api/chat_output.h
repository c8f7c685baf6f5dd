// The prompt of a chat, and the parsing of its output.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/json_body.h"
#include "server/front/generation.h"
#include "server/front/served_model.h"
#include "text/output/output_parser.h"

namespace switchyard {

// Parses the outputs of a chat request into reasoning, content and tool calls, by the request's
// options.

// How the outputs of one request are parsed. Immutable; shared by its generations.
struct OutputPlan {
  OutputFormat format;
  PromptEnd prompt;
  std::shared_ptr<const OfferedTools> tools;  // nullptr: calls are not parsed
  bool parallel_calls = true;                 // false: all calls but the first are dropped
  bool forced_calls = false;                  // a grammar allows only calls after the reasoning
  bool separate_reasoning = true;             // false: reasoning stays in the content
  bool stream_reasoning = true;               // false: reasoning is sent once it has ended
  bool include_reasoning = true;              // false: reasoning is dropped
};

// Reads tools, parallel_tool_calls, separate_reasoning, stream_reasoning and include_reasoning. The
// formats are those of the model. Returns nullptr if outputs need no parsing, because they are
// content only. Throws RequestError for a malformed field.
std::shared_ptr<const OutputPlan> PlanOutput(const ServedModel& model, const Fields& f,
                                             PromptEnd prompt);

// Sets the options of `spec` that the parser needs. Markers that are special tokens stay in the
// text, and events have token_ends.
void RequestMarkers(const OutputPlan& plan, const Tokenizer& tokenizer, GenerationSpec* spec);

// Parses one generation. The thread rules are those of GenerationCallback.
class ChatOutput {
 public:
  explicit ChatOutput(const OutputPlan& plan);

  // Adds one event of the generation, or all events together (Accumulated). Returns the parsed
  // parts, which are sent to the client. Every tool call in them has an id.
  std::vector<OutputEvent> Push(const std::string& text, const std::vector<uint32_t>& token_ends,
                                FinishReason finish);

  bool has_calls() const { return sent_calls_ > 0; }
  // Number of reasoning tokens so far, the markers of reasoning included.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Take(OutputEvent event, std::vector<OutputEvent>* events);

  const OutputPlan& plan_;
  OutputParser parser_;
  // Reasoning held back until it ends; only if stream_reasoning is false.
  std::string held_reasoning_;
  bool after_reasoning_ = false;  // separate_reasoning is false, and the last content was reasoning
  int32_t sent_calls_ = 0;
  int64_t reasoning_tokens_ = 0;
};

// A new id for a call, in the form that the format's templates require.
std::string NewCallId(const OutputFormat& format);

// Renders and tokenizes the messages of a chat request.

struct RenderedPrompt {
  std::string text;  // output of the template; add_special_tokens does not change it
  std::vector<int32_t> ids;
  PromptEnd end;
};

// Applies the model's chat template to the body and tokenizes the result. The template gets
// `messages`, `tools` (unless `tool_choice` is "none"), `add_generation_prompt`,
// `continue_final_message` and the variables of TemplateVariables. `add_special_tokens` adds the
// tokenizer's BOS and EOS to those of the template. Throws RequestError for malformed fields; if
// the template raises an error, the RequestError has the template's message. Text of messages never
// becomes a special token. For `limit`, see Tokenizer::Encode.
RenderedPrompt ChatPrompt(const ServedModel& model, const Json& body,
                          size_t limit = Tokenizer::kNoLimit);

}  // namespace switchyard
