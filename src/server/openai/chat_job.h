// Parsed requests of chats, from which the chat endpoints build their responses.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/chat_output.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/openai/common.h"

namespace switchyard::openai {

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

}  // namespace switchyard::openai
