// Parses a text in pieces and joins the events, for tests and the fuzzer.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/output_parser.h"

namespace switchyard {

struct ParsedMessage {
  std::string reasoning, content;
  struct Call {
    std::string name, id, arguments;
    bool ended = false;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls;
  bool operator==(const ParsedMessage&) const = default;

  void Add(const OutputEvent& event) {
    using Kind = OutputEvent::Kind;
    if (event.kind == Kind::kReasoning) reasoning += event.text;
    if (event.kind == Kind::kContent) content += event.text;
    if (event.kind == Kind::kCallBegin)
      calls.push_back({.name = event.text, .id = event.call_id, .arguments = {}});
    if (event.kind == Kind::kArguments) calls.at(event.call).arguments += event.text;
    if (event.kind == Kind::kCallEnd) calls.at(event.call).ended = true;
  }

  // The message as one line, for the output of failed tests.
  std::string Text() const {
    nlohmann::ordered_json json = {{"reasoning", reasoning}, {"content", content}};
    for (const Call& call : calls)
      json["calls"].push_back({call.name, call.id, call.arguments, call.ended});
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
};

struct ParseCase {
  std::string calls, reasoning;  // names of formats; empty: not parsed
  PromptEnd prompt;
  bool complete = true;
};

// Two tools, f and get_weather, whose parameters have all types.
inline std::shared_ptr<const OfferedTools> TestTools() {
  static const auto kTools = std::make_shared<const OfferedTools>(nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
       "text": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"},
       "flag": {"type": "boolean"}, "list": {"type": "array"}, "map": {"type": "object"},
       "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
       "unit": {"$ref": "#/$defs/unit"}},
       "$defs": {"unit": {"enum": ["c", "f"]}}}}},
    {"type": "function", "function": {"name": "get_weather"}}])"));
  return kTools;
}

inline ParsedMessage ParsePieces(const ParseCase& options,
                                 std::span<const std::string_view> pieces) {
  OutputParser parser({FindCallFormat(options.calls), FindReasoningFormat(options.reasoning)},
                      options.calls.empty() ? nullptr : TestTools(), options.prompt);
  ParsedMessage message;
  for (const std::string_view piece : pieces) {
    parser.Push(piece);
    for (const OutputEvent& event : parser.Take()) message.Add(event);
  }
  parser.Finish(options.complete);
  for (const OutputEvent& event : parser.Take()) message.Add(event);
  return message;
}

}  // namespace switchyard
