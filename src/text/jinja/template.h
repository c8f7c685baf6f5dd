// Chat templates: the subset of Jinja2 that Hugging Face templates use. Tracks the provenance of
// every character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace switchyard::jinja {

struct TemplateNode;  // ast.h

// Bytes [begin, end) of a rendered text. Trusted bytes come from the template's literals or from
// trusted variables (such as bos_token). Other bytes come from a request, and must not become
// special tokens.
struct Run {
  size_t begin;
  size_t end;
  bool trusted;

  bool operator==(const Run&) const = default;
};

struct Rendered {
  std::string text;  // UTF-8
  std::vector<Run>
      runs;  // in order, not empty, neighbours differ in trust; together they cover `text`
};

// Limits of one rendering. The defaults allow megabytes of conversation and stop a hostile template
// within one second.
struct RenderOptions {
  int64_t max_steps = 10'000'000;        // evaluated nodes + visited elements + bytes read / 64
  size_t max_bytes = size_t{64} << 20;   // bytes of live strings, containers, scopes and output
  size_t max_output = size_t{64} << 20;  // bytes of rendered text
  double max_cpu_seconds = 1;  // CPU time of the thread, independent of other load on the machine
  double (*cpu_clock)() = nullptr;  // CPU time in seconds; null: the thread's CPU clock
  std::optional<std::time_t> now;   // for strftime_now, as local time; unset: the clock
};

// An error in a template, or an error that a template raises because of its input
// (raise_exception).
class TemplateError : public Error {
 public:
  // `message`: without name and line; the verbatim text if the template raised it.
  TemplateError(const std::string& name, int line, std::string message);

  const std::string& message() const { return message_; }
  int line() const { return line_; }  // from 1

 private:
  std::string message_;
  int line_;
};

// One parsed template, compiled like transformers' apply_chat_template: trim_blocks, lstrip_blocks,
// loop controls, an immutable sandbox. A value type that shares its immutable syntax tree; Render
// is thread-safe.
class Template {
 public:
  // Maximum size of a source. The largest published templates have 60 KB. A syntax tree takes about
  // 100 times the memory of its source.
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  // `name`: the template's name in errors. Throws TemplateError with the line of a syntax error.
  // Statements that need other templates (include, import, extends, block) are errors too.
  static Template Parse(std::string source, std::string name);

  // Both arguments are JSON objects of variables. If a name is in both, the value from
  // `trusted_vars` is used. Throws TemplateError for every error while rendering, exceeded limits
  // included.
  Rendered Render(const nlohmann::ordered_json& untrusted_vars,
                  const nlohmann::ordered_json& trusted_vars,
                  const RenderOptions& options = {}) const;

  const std::string& name() const { return name_; }

 private:
  Template(std::string name, std::shared_ptr<const TemplateNode> root);

  std::string name_;
  std::shared_ptr<const TemplateNode> root_;
};

}  // namespace switchyard::jinja
