#include <utility>

#include "core/error.h"
#include "server/anthropic/messages.h"
#include "text/jinja/exact_json.h"

namespace switchyard::anthropic {
namespace {

// Converts the arguments of a call to the member `input` of its block, for DumpExact. `input` must
// be an object, so other arguments become {"arguments": text}.
Json InputOf(const std::string& arguments) {
  constexpr jinja::JsonLimits kLimits{.depth = 128, .keys = 4096};
  try {
    Json input = jinja::ParseExactJson(arguments, "input", kLimits);
    if (input.is_object()) return input;
  } catch (const Json::exception&) {
  } catch (const Error&) {
  }
  return Json::object({{"arguments", arguments}});
}

}  // namespace

void MessageBlocks::Add(const std::vector<OutputEvent>& events) {
  using Kind = OutputEvent::Kind;
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        Begin("thinking", {{"thinking", ""}, {"signature", ""}});
        Append("thinking_delta", "thinking", event.text);
        break;
      case Kind::kContent:
        Begin("text", Json::object({{"text", ""}}));
        Append("text_delta", "text", event.text);
        break;
      case Kind::kCallBegin:
        End();
        Begin("tool_use", {{"id", event.call_id}, {"name", event.text}, {"input", Json::object()}});
        break;
      case Kind::kArguments:
        arguments_ += event.text;
        if (!sink_) break;
        Emit("content_block_delta",
             {{"index", blocks_.size() - 1},
              {"delta", {{"type", "input_json_delta"}, {"partial_json", event.text}}}});
        break;
      case Kind::kCallEnd:
        End();
        break;
    }
  }
}

void MessageBlocks::Finish() { End(); }

// Ends the open block and begins a new one, unless a block of this type is open.
void MessageBlocks::Begin(const char* type, const Json& block) {
  if (open_ == type) return;
  End();
  open_ = type;
  Json whole = {{"type", type}};
  whole.update(block);
  blocks_.push_back(whole);
  Emit("content_block_start", {{"index", blocks_.size() - 1}, {"content_block", std::move(whole)}});
}

void MessageBlocks::Append(const char* type, const char* key, const std::string& text) {
  blocks_.back()[key].get_ref<std::string&>() += text;
  if (!sink_) return;
  Json delta = {{"type", type}};
  delta[key] = text;
  Emit("content_block_delta", {{"index", blocks_.size() - 1}, {"delta", std::move(delta)}});
}

void MessageBlocks::End() {
  if (open_.empty()) return;
  if (open_ == "tool_use") blocks_.back()["input"] = InputOf(std::exchange(arguments_, {}));
  open_.clear();
  Emit("content_block_stop", Json::object({{"index", blocks_.size() - 1}}));
}

void MessageBlocks::Emit(const char* type, Json members) const {
  if (sink_) sink_(type, std::move(members));
}

}  // namespace switchyard::anthropic
