#include "text/jinja/template.h"

#include <fmt/format.h>

#include <utility>

#include "text/jinja/context.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/print.h"
#include "text/jinja/utf8.h"

namespace switchyard::jinja {
namespace {

void SetVariables(Context& context, Scope& scope, const nlohmann::ordered_json& variables,
                  bool trusted) {
  for (const auto& [name, value] : variables.items())
    scope.Set(name, FromJson(context, value, trusted));
}

Rendered ToRendered(Text text) {
  Rendered rendered;
  rendered.runs.reserve(text.runs());
  text.ForEachRun([&](size_t begin, size_t end, bool trusted) {
    rendered.runs.push_back({begin, end, trusted});
  });
  rendered.text = std::move(text).Take();
  return rendered;
}

}  // namespace

TemplateError::TemplateError(const std::string& name, int line, std::string message)
    : Error(ErrorKind::kInvalid, fmt::format("{}, line {}: {}", name, line, message)),
      message_(std::move(message)),
      line_(line) {}

Template::Template(std::string name, std::shared_ptr<const TemplateNode> root)
    : name_(std::move(name)), root_(std::move(root)) {}

Template Template::Parse(std::string source, std::string name) {
  if (source.size() > kMaxSourceBytes) {
    throw TemplateError(name, 1,
                        fmt::format("the template has {} bytes, at most {} are allowed",
                                    source.size(), kMaxSourceBytes));
  }
  if (!IsValidUtf8(source)) throw TemplateError(name, 1, "the template is not valid UTF-8");
  try {
    return Template(std::move(name), ParseTemplate(source));
  } catch (const SyntaxError& error) {
    throw TemplateError(name, error.line, error.message);
  }
}

Rendered Template::Render(const nlohmann::ordered_json& untrusted_vars,
                          const nlohmann::ordered_json& trusted_vars,
                          const RenderOptions& options) const {
  Context context(options);
  auto globals = std::make_shared<Scope>(context, nullptr);
  Interpreter interpreter(context, globals);
  try {
    SetVariables(context, *globals, untrusted_vars, false);
    SetVariables(context, *globals, trusted_vars, true);
    return ToRendered(interpreter.Run(*root_));
  } catch (const Raise& raise) {
    throw TemplateError(name_, interpreter.line(), raise.message);
  }
}

}  // namespace switchyard::jinja
