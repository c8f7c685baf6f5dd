// Chat templates: the part of Jinja2 that Hugging Face templates use, with the provenance of every
// character.
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

// Bytes [begin, end) of a rendered text. Trusted bytes come from the template's own literals or
// from trusted variables (bos_token and such); the others from a request, and must not become
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
      runs;  // adjoining, none empty, neighbours differ in trust; together they cover `text`
};

// What one rendering may use up. The defaults let through megabytes of conversation and stop a
// hostile template within a second.
struct RenderOptions {
  int64_t max_steps = 10'000'000;        // evaluated nodes, visited elements, bytes looked at / 64
  size_t max_bytes = size_t{64} << 20;   // of strings, containers, scopes and output held at a time
  size_t max_output = size_t{64} << 20;  // bytes of rendered text
  double max_seconds = 1;  // of the thread's processor time: a busy machine changes nothing
  double (*processor_seconds)() = nullptr;  // null: the clock of the thread
  std::optional<std::time_t> now;  // what strftime_now reads, as local time; unset: the clock
};

// What is wrong with a template, or what a template says about its input by raise_exception.
class TemplateError : public Error {
 public:
  // `message`: without place, verbatim what a template raised.
  TemplateError(const std::string& name, int line, std::string message);

  const std::string& message() const { return message_; }
  int line() const { return line_; }  // from 1

 private:
  std::string message_;
  int line_;
};

// One parsed template, as transformers' apply_chat_template compiles it: trim_blocks,
// lstrip_blocks, loop controls, an immutable sandbox. A value that shares its immutable syntax
// tree; any number of threads may render.
class Template {
 public:
  // Longer sources are refused: the largest that are published have 60 KB, and a syntax tree is a
  // hundred times as large.
  static constexpr size_t kMaxSourceBytes = size_t{1} << 20;

  // `name` is what errors call the template. Throws TemplateError with the line of a syntax error,
  // also for statements that reach outside the template (include, import, extends, block).
  static Template Parse(std::string source, std::string name);

  // Both arguments are JSON objects: names to values; a name in both is read from `trusted_vars`.
  // Throws TemplateError for whatever goes wrong while rendering, limits included.
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
