#include "chat/chat_client.h"

#include <algorithm>

#include "chat/screen.h"
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

void EventStream::Feed(std::string_view bytes, const std::function<void(std::string_view)>& event) {
  for (const char c : bytes) {
    if (c == '\n' && after_return_) {
      after_return_ = false;
      continue;
    }
    after_return_ = c == '\r';
    if (c == '\n' || c == '\r') {
      TakeLine(event);
    } else {
      line_ += c;
      if (line_.size() + data_.size() > kMaxEvent)
        throw Error(ErrorKind::kPeer, "the server sent an event of more than 64 MiB");
    }
  }
}

void EventStream::TakeLine(const std::function<void(std::string_view)>& event) {
  const std::string line = std::exchange(line_, {});
  if (line.empty()) {
    const std::string data = std::exchange(data_, {});
    if (std::exchange(has_data_, false)) event(data);
    return;
  }
  std::string_view value = line;
  constexpr std::string_view kData = "data";
  if (!value.starts_with(kData)) return;
  value.remove_prefix(kData.size());
  if (!value.empty() && !value.starts_with(':')) return;  // another field, such as "database"
  if (value.starts_with(':')) value.remove_prefix(1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  has_data_ = true;
  data_ += value;
}

namespace {

using nlohmann::json;

// Ids of the models in a response of /v1/models.
std::vector<std::string> ModelsOf(const std::string& body) {
  const json list = json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  if (!list.is_object() || !list.contains("data") || !list["data"].is_array()) return names;
  for (const json& model : list["data"])
    if (model.is_object() && model.contains("id") && model["id"].is_string())
      names.push_back(model["id"].get<std::string>());
  return names;
}

}  // namespace

void ChatClient::Fail(const HttpClient::Response& response) const {
  const std::string url = http_.url().Text();
  const std::string message = ErrorMessageOf(response.body);
  const std::string text =
      fmt::format("{}: {}{}{}", url, response.status, message.empty() ? "" : ": ", message);
  switch (response.status) {
    case 401:
    case 403:
      throw Error(ErrorKind::kUnauthorized,
                  fmt::format("{}: {}{}{}", url,
                              has_key_ ? "the server refused the API key"
                                       : "the server requires an API key",
                              message.empty() ? "" : ": ", message),
                  "set it by --api-key or OPENAI_API_KEY");
    case 404:
      throw Error(ErrorKind::kNotFound, text);
    case 400:
    case 413:
    case 422:
      throw Error(ErrorKind::kInvalid, text);
    default:
      throw Error(ErrorKind::kPeer, text);
  }
}

std::string ChatClient::ChooseModel(const std::string& wanted) {
  const HttpClient::Response response = http_.Get("/v1/models");
  // Some servers have no list.
  const bool has_list = response.status != 404 && response.status != 405;
  if (!has_list && !wanted.empty()) return wanted;
  if (has_list && response.status != 200) Fail(response);
  const std::vector<std::string> names = ModelsOf(response.body);
  if (names.empty())
    throw Error(ErrorKind::kPeer, fmt::format("{}: the server lists no models", url().Text()),
                "is it an OpenAI-compatible server?");
  if (wanted.empty()) return names.front();
  if (std::ranges::find(names, wanted) != names.end()) return wanted;
  throw NotFound("--model {}: {} has no such model, but {}", wanted, url().Text(),
                 Shortened(Joined(names, ", ")));
}

void ChatClient::Ask(const std::string& request, Answer* answer,
                     const std::function<void(const AnswerPart&)>& part) {
  EventStream events;
  const auto take = [&](std::string_view bytes) {
    events.Feed(bytes, [&](std::string_view data) {
      if (answer->done()) return;
      const AnswerPart now = answer->Take(data);
      if (!now.content.empty() || !now.reasoning.empty()) part(now);
    });
  };
  const HttpClient::Response response = http_.Post("/v1/chat/completions", request, take);
  if (response.status != 200) Fail(response);
  if (!answer->done() && answer->finish_reason().empty())
    throw Error(ErrorKind::kPeer, fmt::format("{}: the answer ended too early", url().Text()));
}

}  // namespace switchyard::chat
