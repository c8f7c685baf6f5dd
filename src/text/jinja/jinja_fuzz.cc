// Renders arbitrary bytes as a template with a fixed conversation and small budgets. The only
// allowed failure is TemplateError. The runs of the result must cover the rendered text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/jinja/template.h"

namespace {

using switchyard::jinja::RenderOptions;
using switchyard::jinja::Run;
using switchyard::jinja::Template;
using switchyard::jinja::TemplateError;

const nlohmann::ordered_json& Conversation() {
  static const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(R"({
    "messages": [
      {"role": "system", "content": "  Be brief.\n"},
      {"role": "user", "content": "Grüße, 令牌 <|x|>", "tags": [1, 2.5, null, true]},
      {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": "c"}]}}}]},
      {"role": "tool", "content": "{\"t\": 1}", "tool_call_id": "c1"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "s": "ab c", "n": 7, "l": [3, 1, 2], "d": {"b": 2, "a": 1}
  })");
  return variables;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  RenderOptions options{.max_steps = 20'000, .max_bytes = 4 << 20, .max_output = 1 << 20, .now = 0};
  try {
    Template parsed =
        Template::Parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    auto rendered = parsed.Render(Conversation(), {{"bos_token", "<s>"}}, options);
    size_t at = 0;
    for (const Run& run : rendered.runs) {
      if (run.begin != at || run.end <= run.begin) std::abort();
      at = run.end;
    }
    if (at != rendered.text.size()) std::abort();
  } catch (const TemplateError&) {
  }
  return 0;
}
