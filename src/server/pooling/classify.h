// POST /classify and /v1/classify: the classes of prompts.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

// If the body has `input`, body and response have the form of vLLM and of SGLang's /v1/classify. If
// it has `text` or `input_ids`, they have the form of SGLang's native /classify (HandleEncode).
void HandleClassify(Service& service, const http::Request& request,
                    const http::Responder& responder);

}  // namespace switchyard::pooling
