#include "route/prompt_key.h"

#include "core/bounded_json.h"
#include "core/error.h"

namespace switchyard::route {
namespace {

using nlohmann::json;

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendIds(const json& ids, std::string& key) {
  for (const json& id : ids) {
    if (key.size() >= kMaxPromptKey) return;
    if (!id.is_number_integer()) continue;
    const auto value = static_cast<uint32_t>(id.get<int64_t>());
    for (int shift = 0; shift < 32; shift += 8) key += static_cast<char>(value >> shift & 0xff);
  }
}

// Appends a prompt: a text, a list of token ids or a list of messages. Of a list of prompts, only
// the first one is appended.
void AppendPrompt(const json& value, std::string& key) {
  if (value.is_string()) {
    key += value.get_ref<const std::string&>();
  } else if (value.is_array() && !value.empty()) {
    if (value.front().is_number()) {
      AppendIds(value, key);
    } else if (value.front().is_object()) {
      for (const json& message : value) {
        if (key.size() >= kMaxPromptKey) return;
        key += Dump(message);
      }
    } else {
      AppendPrompt(value.front(), key);
    }
  }
}

}  // namespace

PromptInfo ReadPrompt(std::string_view body) {
  PromptInfo info;
  json request;
  try {
    request = ParseBoundedJson(body, "body");
  } catch (const Error&) {
    return info;
  }
  if (!request.is_object()) return info;
  const auto field = [&](const char* name) -> const json* {
    const auto found = request.find(name);
    return found == request.end() || found->is_null() ? nullptr : &*found;
  };
  info.names_stored_response = field("previous_response_id") != nullptr;
  // Models have separate caches.
  if (const json* const model = field("model"); model && model->is_string())
    info.key = model->get_ref<const std::string&>() + '\n';
  const size_t without_prompt = info.key.size();
  // Templates write tools and system texts before the messages.
  for (const char* name : {"tools", "system", "instructions"})
    if (const json* const value = field(name)) info.key += Dump(*value);
  for (const char* name : {"messages", "input", "input_ids", "text", "prompt"})
    if (const json* const value = field(name)) AppendPrompt(*value, info.key);
  if (info.key.size() == without_prompt) info.key.clear();
  if (info.key.size() > kMaxPromptKey) info.key.resize(kMaxPromptKey);
  return info;
}

}  // namespace switchyard::route
