// POST /generate: SGLang's native interface.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// Parsed body of /generate: one or more prompts, each with `n` copies.
struct GenerateBody {
  std::vector<GenerationSpec> specs;
  bool single = true;  // the response is one object, not a list
  bool stream = false;
  bool text_in_logprobs = false;
  bool prompt_ids = false;               // return_prompt_token_ids
  bool segments = false;                 // --stream-output: an event has only the new output
  std::optional<SessionParams> session;  // session_params; then there is one spec
};
GenerateBody ParseGenerateBody(const Service& service, const Json& body);

// SGLang's meta_info of generation `index`, without log-probabilities and routed experts.
// `seconds`: since the request.
Json MetaInfo(const GenerateBody& body, size_t index, const Accumulated& a, double seconds);

void HandleGenerate(Service& service, const http::Request& request,
                    const http::Responder& responder);

}  // namespace switchyard::native
