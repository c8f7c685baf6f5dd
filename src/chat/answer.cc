#include "chat/answer.h"

#include "chat/safe_text.h"
#include "core/error.h"
#include "core/json.h"

namespace switchyard::chat {
namespace {

using nlohmann::json;

json ParseOrNull(std::string_view text) {
  json value = json::parse(text.data(), text.data() + text.size(), nullptr,
                           /*allow_exceptions=*/false);
  return value.is_discarded() ? json() : value;
}

std::string TextOf(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t CountOf(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
}

const json* ErrorOf(const json& value) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find("error");
  return found != value.end() && !found->is_null() ? &*found : nullptr;
}

}  // namespace

std::string ErrorMessageOf(std::string_view body) {
  const json value = ParseOrNull(body);
  if (const json* error = ErrorOf(value)) {
    if (error->is_string()) return Shortened(error->get<std::string>());
    if (error->is_object())
      if (std::string message = TextOf(*error, "message"); !message.empty())
        return Shortened(message);
  }
  if (value.is_object())
    for (const char* key : {"message", "detail"})
      if (std::string message = TextOf(value, key); !message.empty()) return Shortened(message);
  return Shortened(body);
}

AnswerPart Answer::Take(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return {};
  }
  const json event = ParseOrNull(data);
  if (!event.is_object())
    throw Error(ErrorKind::kPeer,
                "the server sent an event that is not a JSON object: " + Shortened(data));
  if (ErrorOf(event) != nullptr) throw Error(ErrorKind::kPeer, ErrorMessageOf(data));
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    prompt_tokens_ = CountOf(*usage, "prompt_tokens");
    output_tokens_ = CountOf(*usage, "completion_tokens");
  }
  AnswerPart part;
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return part;
  const json& choice = choices->front();
  if (!choice.is_object()) return part;
  if (std::string reason = TextOf(choice, "finish_reason"); !reason.empty())
    finish_reason_ = std::move(reason);
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return part;
  // Servers call this field reasoning_content, reasoning, or send both with the same text.
  part.reasoning = TextOf(*delta, "reasoning_content");
  if (part.reasoning.empty()) part.reasoning = TextOf(*delta, "reasoning");
  part.content = TextOf(*delta, "content");
  reasoning_ += part.reasoning;
  content_ += part.content;
  return part;
}

}  // namespace switchyard::chat
