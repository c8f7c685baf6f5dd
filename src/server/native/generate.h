// POST /generate: SGLang's native interface.
#pragma once

#include "server/api/accumulated.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// What a body of /generate asks for: one or many prompts, each `n` times.
struct GenerateBody {
  std::vector<GenerationSpec> specs;
  bool single = true;  // the answer is one object instead of a list
  bool stream = false;
  bool text_in_logprobs = false;
  bool prompt_ids = false;  // return_prompt_token_ids
  bool segments = false;    // --stream-output: an event has what came since the one before
  std::string weight_version;
};
GenerateBody ParseGenerateBody(const Service& service, const Json& body);

// One answer as SGLang has it: text, output_ids, meta_info. `with_input`: with the prompt's
// log-probabilities, where they are asked for, else with empty lists in their place.
Json GenerateAnswer(const Tokenizer& tokenizer, const GenerateBody& body,
                    const GenerationSpec& spec, const Accumulated& so_far, bool with_input,
                    double seconds);

void HandleGenerate(Service& service, const http::Request& request,
                    const http::Responder& responder);

}  // namespace switchyard::native
