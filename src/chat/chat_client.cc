#include "chat/chat_client.h"

#include <algorithm>

#include "chat/event_stream.h"
#include "chat/safe_text.h"
#include "core/error.h"
#include "core/json.h"

namespace switchyard::chat {
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
