// POST /generate: SGLang's native interface.
#pragma once

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
  bool prompt_ids = false;  // return_prompt_token_ids
  bool segments = false;    // --stream-output: an event has only the new output
  std::string weight_version;
};
GenerateBody ParseGenerateBody(const Service& service, const Json& body);

// One response in SGLang's format: text, output_ids, meta_info. With return_logprob, the response
// has lists for the prompt's log-probabilities, which are empty unless `with_input` is true.
Json GenerateAnswer(const Tokenizer& tokenizer, const GenerateBody& body,
                    const GenerationSpec& spec, const Accumulated& so_far, bool with_input,
                    double seconds);

void HandleGenerate(Service& service, const http::Request& request,
                    const http::Responder& responder);

}  // namespace switchyard::native
