// Parses tokens to a syntax tree.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/ast.h"

namespace switchyard::jinja {

// Throws SyntaxError (lexer.h). `source` is valid UTF-8.
std::shared_ptr<const TemplateNode> ParseTemplate(std::string_view source);

}  // namespace switchyard::jinja
