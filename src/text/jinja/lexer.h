// Splits template source into tokens, with Jinja's rules for white space around tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace switchyard::jinja {

enum class TokenKind {
  kData,           // text between tags, white space already stripped
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // end of the template; always the last token
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, operator; a string's contents with escapes resolved
  Int integer = 0;
  double floating = 0;
};

// A syntax error and its line; Template::Parse turns it into a TemplateError.
struct SyntaxError {
  int line;
  std::string message;
};

// Tokenizes `source` like a Jinja2 environment with trim_blocks and lstrip_blocks. All line breaks
// become LF, and one at the end of the source is dropped. Comments are removed. Raw blocks become
// data. Throws SyntaxError.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace switchyard::jinja
