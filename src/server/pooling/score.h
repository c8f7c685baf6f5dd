// POST /score and /v1/score: scores of pairs of texts (vLLM), and of labels (SGLang).
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

// A body with `query` and `items` is SGLang's request. For a model that generates text, the scores
// are the probabilities of the tokens `label_token_ids` after query and item. For a classifier,
// they are the scores of its classes. A body with other fields is vLLM's request for scores of
// pairs, which needs an embedding model or a classifier (PairScores).
void HandleScore(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::pooling
