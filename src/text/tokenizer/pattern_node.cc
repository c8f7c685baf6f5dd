#include "text/tokenizer/pattern_node.h"

#include "core/error.h"

namespace switchyard {

TextPattern ReadPattern(const JsonNode& node) {
  const JsonNode literal = node["String"];
  const JsonNode regex = node["Regex"];
  if (literal.is_null() == regex.is_null())
    throw Invalid("{}: want either \"String\" or \"Regex\"", node.where());
  return regex.is_null() ? TextPattern::Literal(literal.String(), literal.where())
                         : TextPattern::Regex(regex.String(), regex.where());
}

}  // namespace switchyard
