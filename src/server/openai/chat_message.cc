#include "server/openai/chat_message.h"

#include <utility>

namespace switchyard::openai {
namespace {

using Kind = OutputEvent::Kind;

Json CallOf(const OutputEvent& begin) {
  return {{"id", begin.call_id},
          {"type", "function"},
          {"function", {{"name", begin.text}, {"arguments", ""}}}};
}

void Append(Json& json, const std::string& text) { json.get_ref<std::string&>() += text; }

// A delta with one call, to which later arguments can be appended.
Json CallDelta(int32_t index, const Json& call) {
  Json entry = {{"index", index}};
  entry.update(call);
  return {{"tool_calls", Json::array({std::move(entry)})}};
}

}  // namespace

Json MessageOf(const OutputPlan& plan, const std::vector<OutputEvent>& events,
               const std::string& echo) {
  std::string content = echo, reasoning;
  Json calls = Json::array();
  for (const OutputEvent& event : events) {
    if (event.kind == Kind::kReasoning) reasoning += event.text;
    if (event.kind == Kind::kContent) content += event.text;
    if (event.kind == Kind::kCallBegin) calls.push_back(CallOf(event));
    if (event.kind == Kind::kArguments) Append(calls.back()["function"]["arguments"], event.text);
  }
  Json message = {{"role", "assistant"}, {"content", nullptr}};
  if (!content.empty() || calls.empty()) message["content"] = std::move(content);
  if (plan.separate_reasoning) {
    const Json shown = reasoning.empty() ? Json(nullptr) : Json(std::move(reasoning));
    message["reasoning_content"] = shown;
    message["reasoning"] = shown;
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::vector<Json> DeltasOf(const std::vector<OutputEvent>& events) {
  std::vector<Json> deltas;
  int32_t open = -1;  // index of the call that the last delta belongs to; −1: none
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        deltas.push_back({{"reasoning_content", event.text}, {"reasoning", event.text}});
        break;
      case Kind::kContent:
        deltas.push_back({{"content", event.text}});
        break;
      case Kind::kCallBegin:
        deltas.push_back(CallDelta(event.call, CallOf(event)));
        break;
      case Kind::kArguments:
        if (open == event.call) {
          Append(deltas.back()["tool_calls"][0]["function"]["arguments"], event.text);
        } else {
          deltas.push_back(CallDelta(event.call, {{"function", {{"arguments", event.text}}}}));
        }
        break;
      case Kind::kCallEnd:
        break;
    }
    const bool of_call = event.kind == Kind::kCallBegin || event.kind == Kind::kArguments;
    open = of_call ? event.call : -1;
  }
  return deltas;
}

}  // namespace switchyard::openai
