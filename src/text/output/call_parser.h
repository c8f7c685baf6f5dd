// Base of the tool-call parsers: one parser per format, fed with text in pieces.
#pragma once

#include <memory>
#include <string_view>

#include "text/output/offered_tools.h"
#include "text/output/output_events.h"

namespace switchyard {

// Splits text into content and tool calls. The events depend only on the text, not on its pieces.
// Text that does not have the form of a call is content, with its markers. A call begins once its
// name is known. From then on its text becomes arguments, even if they are not valid JSON. Never
// throws for any text. One output, one thread at a time.
class CallParser {
 public:
  explicit CallParser(OutputEvents& out) : writer_(out) {}
  virtual ~CallParser() = default;
  CallParser(const CallParser&) = delete;
  CallParser& operator=(const CallParser&) = delete;

  void Push(std::string_view text) {
    input_.Append(text);
    while (Step()) {
    }
  }

  // `complete`: the model ended the output itself. Then a call without its end marker is closed. If
  // false, a limit has truncated the output, and the arguments of an open call stay unfinished.
  void Finish(bool complete) {
    input_.End();
    while (Step()) {
    }
    AtEnd(complete);
    writer_.Finish();
  }

 protected:
  // Consumes a part of input_. Returns false if the parser needs more text, or if all text is
  // consumed.
  virtual bool Step() = 0;
  // Called after the last Step: writes the text that is still held back.
  virtual void AtEnd(bool complete) = 0;

  PieceBuffer input_;
  CallWriter writer_;
};

// Limits of buffered text. Longer text is not a call: it becomes content.
inline constexpr size_t kMaxCallName = 256;      // bytes of a function's name
inline constexpr size_t kMaxCallHead = 1 << 20;  // bytes before a call's name is known

// One parser per format. `tools` must outlive the parser.
using MakeCallParser = std::unique_ptr<CallParser> (*)(OutputEvents& out,
                                                       const OfferedTools& tools);

// <tool_call>{"name": …, "arguments": …}</tool_call>: Hermes, Qwen 2.5, Qwen 3.
std::unique_ptr<CallParser> MakeHermesParser(OutputEvents& out, const OfferedTools& tools);
// The same objects, or a list of them, with other markers: <|tool_call|> without an end (Granite
// 3), <tool_calls> (Hunyuan-A13B) and <longcat_tool_call>.
std::unique_ptr<CallParser> MakeGraniteParser(OutputEvents& out, const OfferedTools& tools);
std::unique_ptr<CallParser> MakeHunyuanA13bParser(OutputEvents& out, const OfferedTools& tools);
std::unique_ptr<CallParser> MakeLongcatParser(OutputEvents& out, const OfferedTools& tools);
// {"name": …, "parameters": …} at the start of the content, or after <|python_tag|>; several calls
// are separated by semicolons. Without the tag, only offered tools can be called.
std::unique_ptr<CallParser> MakeLlama3Parser(OutputEvents& out, const OfferedTools& tools);
// [TOOL_CALLS] and a list of JSON objects, or name[ARGS]{…}, or name[CALL_ID]id[ARGS]{…}.
std::unique_ptr<CallParser> MakeMistralParser(OutputEvents& out, const OfferedTools& tools);
// <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>.
std::unique_ptr<CallParser> MakeQwen3CoderParser(OutputEvents& out, const OfferedTools& tools);
// <minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>….
std::unique_ptr<CallParser> MakeMinimaxM2Parser(OutputEvents& out, const OfferedTools& tools);
// <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>.
std::unique_ptr<CallParser> MakeGlm45Parser(OutputEvents& out, const OfferedTools& tools);
// <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, and the arguments in a block ```json.
std::unique_ptr<CallParser> MakeDeepSeekV3Parser(OutputEvents& out, const OfferedTools& tools);
// <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>.
std::unique_ptr<CallParser> MakeDeepSeekV31Parser(OutputEvents& out, const OfferedTools& tools);
// <｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY"
// string="true">VALUE</｜DSML｜parameter>…, within <｜DSML｜function_calls>, or of V4 within
// <｜DSML｜tool_calls>. Values with string="false" are JSON.
std::unique_ptr<CallParser> MakeDeepSeekV32Parser(OutputEvents& out, const OfferedTools& tools);
std::unique_ptr<CallParser> MakeDeepSeekV4Parser(OutputEvents& out, const OfferedTools& tools);
// <|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{…}<|tool_call_end|>. The text
// before the arguments is the call's id.
std::unique_ptr<CallParser> MakeKimiK2Parser(OutputEvents& out, const OfferedTools& tools);
// <|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{…}<|tool_call:end|>.
std::unique_ptr<CallParser> MakeSolarOpenParser(OutputEvents& out, const OfferedTools& tools);
// [name(key=value, …), …] at the start of the content, or within <|python_start|> and
// <|python_end|>. Values are Python literals. Only offered tools can be called. A list is parsed
// once it is complete, so its arguments arrive in one piece.
std::unique_ptr<CallParser> MakePythonicParser(OutputEvents& out, const OfferedTools& tools);

}  // namespace switchyard
