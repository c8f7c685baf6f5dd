#include <algorithm>
#include <string>
#include <utility>

#include "server/openai/response_items.h"

namespace switchyard::openai {
namespace {

// The text of `content`: a string, or a list of parts with text.
std::string PartsText(const Json& content, const std::string& where) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw InvalidField(where, "{}: want a string or a list of parts", where);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (!content[i].is_object()) throw InvalidField(at, "{} is not an object", at);
    const Fields part(content[i], at + ".");
    const std::string type = part.String("type", "");
    const bool refusal = type == "refusal";
    if (!refusal && !type.ends_with("text"))
      throw InvalidField(part.Name("type"), "{}: {} is not supported here: input is text only",
                         part.Name("type"), Dump(type).substr(0, 80));
    if (i > 0) text += '\n';
    text += part.String(refusal ? "refusal" : "text", "");
  }
  return text;
}

// Collects messages from input items.
class Conversation {
 public:
  void Add(const Json& item, const std::string& where) {
    if (!item.is_object()) throw InvalidField(where, "{} is not an object", where);
    const Fields f(item, where + ".");
    const std::string type = f.String("type", "message");
    if (type == "message") {
      AddMessage(f);
    } else if (type == "reasoning") {
      AddReasoning(f);
    } else if (type == "function_call") {
      AddCall(f);
    } else if (type == "function_call_output") {
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", Required(f, "call_id")},
                           {"content", PartsOf(f, "output")}});
    } else {
      throw InvalidField(f.Name("type"), "{}: {} is not supported", f.Name("type"),
                         Dump(type).substr(0, 80));
    }
  }

  Json Take() { return std::move(messages_); }

 private:
  static std::string Required(const Fields& f, const char* key) {
    if (!f.Has(key)) throw InvalidField(f.Name(key), "{} is missing", f.Name(key));
    return f.String(key, "");
  }

  static std::string PartsOf(const Fields& f, const char* key) {
    const Json* parts = f.Find(key);
    return parts ? PartsText(*parts, f.Name(key)) : "";
  }

  void AddMessage(const Fields& f) {
    const std::string role = Required(f, "role");
    Json message = {{"role", role}, {"content", PartsOf(f, "content")}};
    if (role == "assistant") {
      // If the last message has only calls, this text belongs to the same turn.
      Json& turn = AssistantTurn();
      if (turn["content"].is_null()) {
        turn["content"] = message["content"];
        return;
      }
    }
    messages_.push_back(std::move(message));
  }

  void AddReasoning(const Fields& f) {
    const char* key = f.Has("content") ? "content" : "summary";
    messages_.push_back(
        {{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", PartsOf(f, key)}});
  }

  void AddCall(const Fields& f) {
    Json function = {{"name", Required(f, "name")}, {"arguments", f.String("arguments", "{}")}};
    AssistantTurn()["tool_calls"].push_back(
        {{"id", Required(f, "call_id")}, {"type", "function"}, {"function", std::move(function)}});
  }

  // Returns the last message if its role is assistant. Otherwise appends a new one.
  Json& AssistantTurn() {
    if (messages_.empty() || messages_.back()["role"] != "assistant")
      messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    return messages_.back();
  }

  Json messages_ = Json::array();
};

Json ToolsOf(const Json& tools) {
  if (!tools.is_array()) throw InvalidField("tools", "tools is not a list");
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) throw InvalidField(where, "{} is not an object", where);
    const Fields t(tools[i], where + ".");
    if (const std::string type = t.String("type", ""); type != "function")
      throw InvalidField(t.Name("type"), "{}: {} is not supported, only function", t.Name("type"),
                         Dump(type).substr(0, 80));
    Json function = Json::object();
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      if (const Json* value = t.Find(key)) function[key] = *value;
    }
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

// Converts tool_choice to the chat API. "auto", "none" and "required" are the same in both APIs. A
// named function is nested in an object `function` in the chat API.
Json ToolChoiceOf(const Json& choice) {
  if (!choice.is_object() || !choice.contains("name")) return choice;
  return {{"type", choice.value("type", Json("function"))},
          {"function", {{"name", choice["name"]}}}};
}

// Converts text.format to response_format of the chat API, which has name, schema and strict in an
// object `json_schema`.
Json ResponseFormatOf(const Json& format) {
  if (!format.is_object()) throw InvalidField("text.format", "text.format is not an object");
  const Fields f(format, "text.format.");
  const std::string type = f.String("type", "text");
  if (type != "json_schema") return {{"type", type}};
  if (!f.Has("schema")) throw InvalidField("text.format.schema", "text.format.schema is missing");
  Json named = Json::object();
  for (const char* key : {"name", "schema", "strict"})
    if (const Json* value = f.Find(key)) named[key] = *value;
  return {{"type", type}, {"json_schema", std::move(named)}};
}

void AddText(const Json& text, Json* body) {
  if (!text.is_object()) throw InvalidField("text", "text is not an object");
  const Fields f(text, "text.");
  if (f.String("verbosity", "medium") != "medium")
    throw InvalidField("text.verbosity", "text.verbosity is not supported");
  if (const Json* format = f.Find("format")) (*body)["response_format"] = ResponseFormatOf(*format);
}

void CheckInclude(const Fields& f) {
  for (const std::string& name : f.Strings("include")) {
    // Accepted without effect: responses have the reasoning as plain text.
    if (name != "reasoning.encrypted_content")
      throw InvalidField("include", "include: {} is not supported", Dump(name).substr(0, 80));
  }
}

void AddReasoning(const Json& reasoning, Json* body) {
  if (!reasoning.is_object()) throw InvalidField("reasoning", "reasoning is not an object");
  const auto effort = reasoning.find("effort");
  if (effort != reasoning.end() && !effort->is_null()) (*body)["reasoning"]["effort"] = *effort;
}

}  // namespace

Json InputMessages(const Fields& f) {
  const Json* input = f.Find("input");
  if (!input) throw InvalidField("input", "input is missing");
  Conversation conversation;
  if (input->is_string()) {
    conversation.Add({{"role", "user"}, {"content", *input}}, "input");
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i)
      conversation.Add((*input)[i], fmt::format("input[{}]", i));
  } else {
    throw InvalidField("input", "input: want a string or a list of items");
  }
  return conversation.Take();
}

Json ResponsesChatBody(const Fields& f, const Json& messages) {
  Json all = Json::array();
  if (const std::string text = f.String("instructions", ""); !text.empty())
    all.push_back({{"role", "system"}, {"content", text}});
  all.insert(all.end(), messages.begin(), messages.end());
  Json body = {{"messages", std::move(all)}};
  for (const char* key :
       {"model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stream",
        "frequency_penalty", "presence_penalty", "repetition_penalty", "parallel_tool_calls",
        "chat_template_kwargs", "bootstrap_host", "bootstrap_port", "bootstrap_room"}) {
    if (const Json* value = f.Find(key)) body[key] = *value;
  }
  if (const Json* most = f.Find("max_output_tokens")) body["max_completion_tokens"] = *most;
  if (const Json* tools = f.Find("tools")) body["tools"] = ToolsOf(*tools);
  if (const Json* choice = f.Find("tool_choice")) body["tool_choice"] = ToolChoiceOf(*choice);
  if (const Json* reasoning = f.Find("reasoning")) AddReasoning(*reasoning, &body);
  if (const Json* text = f.Find("text")) AddText(*text, &body);
  CheckInclude(f);
  return body;
}

}  // namespace switchyard::openai
