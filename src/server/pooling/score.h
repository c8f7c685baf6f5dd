// POST /score and /v1/score: scores of pairs of texts (vLLM), and of labels (SGLang).
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

// With `query` and `items`, SGLang's request. A model that generates text gives the probabilities
// of the tokens `label_token_ids` after query and item; a classifier gives its classes' scores.
// With other fields, vLLM's request for scores of pairs, to an embedding model or a classifier
// (PairScores).
void HandleScore(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::pooling
