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
  std::string echo;                          // put before each answer
  std::shared_ptr<const OutputPlan> output;  // nullptr: the text is the content
  std::vector<GenerationSpec> specs;         // the n copies
};

// Parses a body of /v1/chat/completions. Throws RequestError that names the field. `id_prefix`: of
// the response's id.
std::shared_ptr<const ChatJob> ParseChat(const Service& service, const Json& body,
                                         const char* id_prefix = "chatcmpl-");

}  // namespace switchyard::openai
