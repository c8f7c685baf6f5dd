#include "chat/conversation.h"

#include "core/format.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

bool Conversation::Undo() {
  if (turns_.empty()) return false;
  turns_.pop_back();
  return true;
}

Json Conversation::Messages(bool with_reasoning) const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Turn& turn : turns_) {
    messages.push_back({{"role", "user"}, {"content", turn.user}});
    Json answer = {{"role", "assistant"}, {"content", turn.answer}};
    if (with_reasoning && !turn.reasoning.empty()) answer["reasoning_content"] = turn.reasoning;
    messages.push_back(std::move(answer));
  }
  return messages;
}

std::string Conversation::Request(const std::string& model, const Sampling& sampling,
                                  const std::string& user) const {
  Json messages = Messages(/*with_reasoning=*/false);
  messages.push_back({{"role", "user"}, {"content", user}});
  Json body = {{"model", model},
               {"messages", std::move(messages)},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (sampling.temperature) body["temperature"] = *sampling.temperature;
  if (sampling.top_p) body["top_p"] = *sampling.top_p;
  if (sampling.max_tokens) body["max_tokens"] = *sampling.max_tokens;
  if (sampling.seed) body["seed"] = *sampling.seed;
  if (!sampling.reasoning_effort.empty()) body["reasoning_effort"] = sampling.reasoning_effort;
  if (!sampling.chat_template_kwargs.empty())
    body["chat_template_kwargs"] = Json::parse(sampling.chat_template_kwargs);
  // Input may have bytes that are not UTF-8; JSON cannot express them.
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Conversation::Saved(bool json) const {
  if (json)
    return Json{{"messages", Messages(/*with_reasoning=*/true)}}.dump(
               2, ' ', false, Json::error_handler_t::replace) +
           "\n";
  std::string text;
  if (!system_.empty()) text += fmt::format("## System\n\n{}\n\n", system_);
  for (const Turn& turn : turns_) {
    text += fmt::format("## User\n\n{}\n\n## Assistant\n\n", turn.user);
    if (!turn.reasoning.empty())
      text += fmt::format("<details><summary>Reasoning</summary>\n\n{}\n\n</details>\n\n",
                          turn.reasoning);
    text += turn.answer + "\n\n";
  }
  if (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace switchyard::chat
