// POST /classify and /v1/classify: the classes of prompts.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

// With `input`, the body and response of vLLM and of SGLang's /v1/classify. With `text` or
// `input_ids`, SGLang's native ones (HandleEncode).
void HandleClassify(Service& service, const http::Request& request,
                    const http::Responder& responder);

}  // namespace switchyard::pooling
