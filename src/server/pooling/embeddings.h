// POST /v1/embeddings (OpenAI) and /encode (SGLang).
#pragma once

#include <vector>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

void HandleEmbeddings(Service& service, const http::Request& request,
                      const http::Responder& responder);
// Handles /encode, and also the native body of SGLang's /classify. For a classifier, "embedding"
// has the scores before the activation.
void HandleEncode(Service& service, const Json& body, const http::Responder& responder);

// Shortens an embedding to `dimensions` elements (Matryoshka) and normalizes it.
std::vector<float> FinishEmbedding(std::vector<float> vector, size_t dimensions, bool normalize);

}  // namespace switchyard::pooling
