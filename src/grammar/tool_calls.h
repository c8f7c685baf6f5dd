// Grammars of tool calls whose arguments are JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "grammar/marked_text.h"
#include "grammar/source.h"

namespace switchyard {

// How a model writes calls: open (head NAME between ARGUMENTS tail) separator (head …) close. For
// example
//   <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>
// has the head `<tool_call>\n{"name": ` and a quoted name.
struct ToolCallFormat {
  std::string open, head, between, tail, separator, close;
  bool quoted = true;    // the name is a JSON string
  bool indexed = false;  // after the name: a colon and a number, which the model chooses
  SpecialTokens special{};
};

// The output of a request whose tool_choice requires calls: one or more calls of `tools` (an array
// in the format of OpenAI's chat API), and nothing else. `name`: the only tool that may be called.
// `parallel`: whether there may be more than one call. The arguments match the `parameters` of the
// tool. With a `space` other than kAny, they have at most one character of white space in a row.
// Throws Error kInvalid that names the tool if its parameters cannot be honoured, or if no tool has
// the name.
GrammarSource ToolCallGrammar(const nlohmann::ordered_json& tools,
                              const std::optional<std::string>& name, bool parallel,
                              const ToolCallFormat& format, JsonSpace space = JsonSpace::kAny);

}  // namespace switchyard
