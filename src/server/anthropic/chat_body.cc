#include <string>
#include <utility>

#include "server/anthropic/messages.h"

namespace switchyard::anthropic {
namespace {

std::string TypeOf(const Json& block, const std::string& where) {
  if (!block.is_object()) throw InvalidField(where, "{} is not an object", where);
  const Fields f(block, where + ".");
  if (!f.Has("type")) throw InvalidField(f.Name("type"), "{} is missing", f.Name("type"));
  return f.String("type", "");
}

[[noreturn]] void Unsupported(const std::string& where, const std::string& type) {
  throw InvalidField(where + ".type", "{}.type: {} is not supported here: input is text only",
                     where, Dump(type).substr(0, 80));
}

// A required string member of a block.
std::string TextOf(const Json& block, const char* key, const std::string& where) {
  const Fields f(block, where + ".");
  if (!f.Has(key)) throw InvalidField(f.Name(key), "{} is missing", f.Name(key));
  return f.String(key, "");
}

// The text of `content`: a string, or a list of text blocks, which are joined by line breaks.
std::string JoinedText(const Json& content, const std::string& where) {
  if (content.is_null()) return "";
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    throw InvalidField(where, "{}: want a string or a list of blocks", where);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (const std::string type = TypeOf(content[i], at); type != "text") Unsupported(at, type);
    if (i > 0) text += '\n';
    text += TextOf(content[i], "text", at);
  }
  return text;
}

// A message in the form of OpenAI's API, while it is built from the blocks of an Anthropic message.
struct Turn {
  std::string text, reasoning;
  Json calls = Json::array();
  Json results = Json::array();  // messages of role tool
  bool has_text = false;
};

void AddBlock(const Json& block, const std::string& where, bool assistant, Turn* turn) {
  const std::string type = TypeOf(block, where);
  const Fields f(block, where + ".");
  if (type == "text") {
    if (turn->has_text) turn->text += '\n';
    turn->text += TextOf(block, "text", where);
    turn->has_text = true;
  } else if (type == "thinking" && assistant) {
    turn->reasoning += f.String("thinking", "");
  } else if (type == "redacted_thinking" && assistant) {
    // The block is dropped: it is encrypted, and only the provider that created it can read it.
  } else if (type == "tool_use" && assistant) {
    const Json* input = f.Find("input");
    if (input && !input->is_object())
      throw InvalidField(f.Name("input"), "{} is not an object", f.Name("input"));
    Json function = {{"name", TextOf(block, "name", where)},
                     {"arguments", input ? *input : Json::object()}};
    turn->calls.push_back({{"id", TextOf(block, "id", where)},
                           {"type", "function"},
                           {"function", std::move(function)}});
  } else if (type == "tool_result" && !assistant) {
    const Json* content = f.Find("content");
    turn->results.push_back({{"role", "tool"},
                             {"tool_call_id", TextOf(block, "tool_use_id", where)},
                             {"content", content ? JoinedText(*content, f.Name("content")) : ""}});
  } else {
    Unsupported(where, type);
  }
}

void AddMessage(const Json& message, const std::string& where, Json* messages) {
  if (!message.is_object()) throw InvalidField(where, "{} is not an object", where);
  const Fields f(message, where + ".");
  const std::string role = f.String("role", "");
  if (role != "user" && role != "assistant" && role != "system")
    throw InvalidField(f.Name("role"), "{}: want user or assistant", f.Name("role"));
  const Json* content = f.Find("content");
  if (!content) throw InvalidField(f.Name("content"), "{} is missing", f.Name("content"));
  if (!content->is_array()) {
    messages->push_back({{"role", role}, {"content", JoinedText(*content, f.Name("content"))}});
    return;
  }
  const bool assistant = role == "assistant";
  Turn turn;
  for (size_t i = 0; i < content->size(); ++i)
    AddBlock((*content)[i], fmt::format("{}[{}]", f.Name("content"), i), assistant, &turn);
  for (Json& result : turn.results) messages->push_back(std::move(result));
  if (!turn.results.empty() && !turn.has_text) return;
  Json out = {{"role", role}, {"content", std::move(turn.text)}};
  if (!turn.reasoning.empty()) out["reasoning_content"] = std::move(turn.reasoning);
  if (!turn.calls.empty()) {
    if (!turn.has_text) out["content"] = nullptr;
    out["tool_calls"] = std::move(turn.calls);
  }
  messages->push_back(std::move(out));
}

Json MessagesOf(const Fields& f) {
  Json messages = Json::array();
  if (const Json* system = f.Find("system")) {
    std::string text = JoinedText(*system, "system");
    if (!text.empty()) messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  }
  const Json* given = f.Find("messages");
  if (!given || !given->is_array() || given->empty())
    throw InvalidField("messages", "messages: want a list of at least one message");
  for (size_t i = 0; i < given->size(); ++i)
    AddMessage((*given)[i], fmt::format("messages[{}]", i), &messages);
  return messages;
}

Json ToolsOf(const Json& tools) {
  if (!tools.is_array()) throw InvalidField("tools", "tools is not a list");
  Json out = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) throw InvalidField(where, "{} is not an object", where);
    const Fields t(tools[i], where + ".");
    if (const std::string type = t.String("type", "custom"); type != "custom")
      throw InvalidField(
          t.Name("type"),
          "{}: {} is not supported, want custom: the server executes no tools itself",
          t.Name("type"), Dump(type).substr(0, 80));
    const Json* schema = t.Find("input_schema");
    if (schema && !schema->is_object())
      throw InvalidField(t.Name("input_schema"), "{} is not an object", t.Name("input_schema"));
    Json function = {{"name", t.String("name", "")}, {"description", t.String("description", "")}};
    function["parameters"] = schema ? *schema : Json::object();
    if (t.Bool("strict", false)) function["strict"] = true;
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

void AddToolChoice(const Json& choice, Json* body) {
  if (!choice.is_object()) throw InvalidField("tool_choice", "tool_choice is not an object");
  const Fields f(choice, "tool_choice.");
  const std::string type = f.String("type", "auto");
  if (type == "auto" || type == "none") {
    (*body)["tool_choice"] = type;
  } else if (type == "any") {
    (*body)["tool_choice"] = "required";
  } else if (type == "tool") {
    (*body)["tool_choice"] = {{"type", "function"}, {"function", {{"name", f.String("name", "")}}}};
  } else {
    throw InvalidField("tool_choice.type", "tool_choice.type is {}, want auto, any, tool or none",
                       Dump(type).substr(0, 80));
  }
  (*body)["parallel_tool_calls"] = !f.Bool("disable_parallel_tool_use", false);
}

// Adds response_format. `format`: the value of output_config.format, or of output_format, the
// field's earlier name.
void AddFormat(const Json& format, const std::string& where, Json* body) {
  if (!format.is_object()) throw InvalidField(where, "{} is not an object", where);
  const Fields f(format, where + ".");
  if (const std::string type = f.String("type", ""); type != "json_schema")
    throw InvalidField(f.Name("type"), "{} is {}, want json_schema", f.Name("type"),
                       Dump(type).substr(0, 80));
  if (!f.Has("schema")) throw InvalidField(f.Name("schema"), "{} is missing", f.Name("schema"));
  (*body)["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "output"}, {"schema", *f.Find("schema")}}}};
}

void AddConfig(const Json& config, Json* body) {
  if (!config.is_object()) throw InvalidField("output_config", "output_config is not an object");
  const Fields f(config, "output_config.");
  for (const auto& [key, value] : config.items()) {
    if (key != "format" && f.Has(key.c_str()))
      throw InvalidField(f.Name(key.c_str()), "{} is not supported", f.Name(key.c_str()));
  }
  if (const Json* format = f.Find("format")) AddFormat(*format, "output_config.format", body);
}

void AddThinking(const Json& thinking, Json* body) {
  if (!thinking.is_object()) throw InvalidField("thinking", "thinking is not an object");
  const std::string type = Fields(thinking, "thinking.").String("type", "");
  if (type == "adaptive") return;
  if (type != "enabled" && type != "disabled")
    throw InvalidField("thinking.type", "thinking.type is {}, want enabled, disabled or adaptive",
                       Dump(type).substr(0, 80));
  (*body)["chat_template_kwargs"] = {{"thinking", type == "enabled"},
                                     {"enable_thinking", type == "enabled"}};
}

// Whether the output continues the last message. It does so if that message is a text of the
// assistant.
bool ContinuesLast(const Json& messages) {
  const Json& last = messages.back();
  return last["role"] == "assistant" && last["content"].is_string() &&
         !last["content"].get_ref<const std::string&>().empty() && !last.contains("tool_calls");
}

}  // namespace

Json ChatBodyOf(const Fields& f) {
  Json body = {{"messages", MessagesOf(f)}};
  if (ContinuesLast(body["messages"])) body["continue_final_message"] = true;
  for (const char* key : {"model", "max_tokens", "temperature", "top_p", "top_k", "stream", "seed",
                          "bootstrap_host", "bootstrap_port", "bootstrap_room"}) {
    if (const Json* value = f.Find(key)) body[key] = *value;
  }
  if (const Json* stop = f.Find("stop_sequences")) body["stop"] = *stop;
  if (const Json* tools = f.Find("tools")) body["tools"] = ToolsOf(*tools);
  if (const Json* choice = f.Find("tool_choice")) AddToolChoice(*choice, &body);
  if (const Json* thinking = f.Find("thinking")) AddThinking(*thinking, &body);
  if (const Json* format = f.Find("output_format")) AddFormat(*format, "output_format", &body);
  if (const Json* config = f.Find("output_config")) AddConfig(*config, &body);
  return body;
}

}  // namespace switchyard::anthropic
