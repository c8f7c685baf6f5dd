// OpenAI's endpoints: /v1/chat/completions, /v1/completions, /v1/responses, /v1/models.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/chat_output.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/openai/common.h"

namespace switchyard::openai {

// Registers OpenAI's endpoints: /v1/chat/completions, /v1/completions, /v1/models.

void Register(http::Server& server, Service& service);

// Parsed requests of chats, from which the chat endpoints build their responses.

struct ChatJob {
  Delivery delivery;
  WantedLogprobs logprobs;
  bool prompt_ids = false;                   // return_prompt_token_ids
  std::optional<std::string> prompt_text;    // return_prompt_text: output of the template
  std::string echo;                          // text that precedes the content of each choice
  std::shared_ptr<const OutputPlan> output;  // null: no parsing; all text is content
  std::vector<GenerationSpec> specs;         // the n copies of the prompt
};

// Parses a body of /v1/chat/completions. Throws RequestError that names the field. `id_prefix`:
// beginning of the id of the response.
std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body,
                                         const char* id_prefix = "chatcmpl-");

// POST /v1/chat/completions.

void HandleChat(Service& service, const http::Request& request, const http::Responder& responder);

// POST /v1/completions.

struct CompletionJob;  // the parsed body of a request
std::shared_ptr<const CompletionJob> ParseCompletion(const Service& service, const Json& body);

void HandleCompletions(Service& service, const http::Request& request,
                       const http::Responder& responder);

// OpenAI's Responses API: POST /v1/responses, and GET, DELETE and input_items of stored responses.

void RegisterResponses(http::Server& server, Service& service);

}  // namespace switchyard::openai
