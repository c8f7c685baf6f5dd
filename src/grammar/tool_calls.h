// Grammars of tool calls, and of text with markers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "grammar/source.h"

namespace switchyard {

// Converts texts that contain special tokens to formats of structural tags.

// Special tokens: text and id. Grammars match special tokens only by their ids.
using SpecialTokens = std::vector<std::pair<std::string, int32_t>>;

// The elements of a sequence that matches `text` exactly. Where `text` contains the text of a
// special token, the sequence matches the token.
nlohmann::ordered_json MarkedText(std::string_view text, const SpecialTokens& special);

// The elements of a sequence that matches any text before the first marker. Either all `markers`
// are special tokens, or none is.
nlohmann::ordered_json TextUntil(const std::vector<std::string>& markers,
                                 const SpecialTokens& special);

// The format of a sequence of formats.
nlohmann::ordered_json SequenceOf(nlohmann::ordered_json elements);

// Grammars of tool calls whose arguments are JSON.

// How a model writes calls: open (head NAME between ARGUMENTS tail) separator (head …) close. For
// example
//   <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>
// has the head `<tool_call>\n{"name": ` and a quoted name.
struct ToolCallFormat {
  std::string open, head, between, tail, separator, close;
  bool quoted = true;    // the name is a JSON string
  bool indexed = false;  // a colon and a number, which the model chooses, follow the name
  SpecialTokens special{};

  // The marker before calls in a text. It may be the beginning of `open` or of `head`.
  std::string trigger{};
  // Whether an output may also begin with calls without the trigger. Then an output that begins
  // with other text must not have the first character of `head` as its first character after white
  // space.
  bool leading = false;
  std::vector<std::string> excluded{};  // markers that text between calls cannot contain
};

// Selects the calls whose arguments must match the `parameters` of their tool. The arguments of
// other calls can be any JSON object.
enum class MatchedCalls : uint8_t {
  kAll,
  kStrict,  // only calls of tools with `strict`: true
};

// The output of a request whose tool_choice requires calls: one or more calls of `tools` (an array
// as OpenAI's chat API has it), and nothing else. `name`: the only tool that may be called.
// `parallel`: whether there may be more than one call. With a `space` other than kAny, arguments
// have at most one character of white space in a row. Throws Error kInvalid that names the tool if
// its parameters cannot be honoured, or if no tool has the name.
GrammarSource ToolCallGrammar(const nlohmann::ordered_json& tools,
                              const std::optional<std::string>& name, bool parallel,
                              const ToolCallFormat& format, JsonSpace space = JsonSpace::kAny,
                              MatchedCalls matched = MatchedCalls::kAll);

// The output of a request that offers tools: any text, in which `format.trigger` begins calls of
// `tools`. Their arguments are checked by the rule MatchedCalls::kStrict. Without `parallel`, the
// output ends after the first call. Throws as ToolCallGrammar does.
GrammarSource TextWithCallsGrammar(const nlohmann::ordered_json& tools, bool parallel,
                                   const ToolCallFormat& format, JsonSpace space = JsonSpace::kAny);

}  // namespace switchyard
