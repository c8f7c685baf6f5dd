// Endpoints of models that embed or classify prompts: /v1/embeddings, /classify, /v1/rerank,
// /v1/score.
#pragma once

#include <vector>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

// Endpoints of embedding models and classifiers.

void Register(http::Server& server, Service& service);

// POST /classify and /v1/classify: the classes of prompts.

// If the body has `input`, body and response have the form of vLLM and of SGLang's /v1/classify. If
// it has `text` or `input_ids`, they have the form of SGLang's native /classify (HandleEncode).
void HandleClassify(Service& service, const http::Request& request,
                    const http::Responder& responder);

// POST /v1/embeddings (OpenAI) and /encode (SGLang).

void HandleEmbeddings(Service& service, const http::Request& request,
                      const http::Responder& responder);
// Handles /encode, and also the native body of SGLang's /classify. For a classifier, "embedding"
// has the scores before the activation.
void HandleEncode(Service& service, const Json& body, const http::Responder& responder);

// Shortens an embedding to `dimensions` elements (Matryoshka) and normalizes it.
std::vector<float> FinishEmbedding(std::vector<float> vector, size_t dimensions, bool normalize);

// POST /rerank, /v1/rerank and /v2/rerank: documents by their score with a query (Jina, Cohere).

void HandleRerank(Service& service, const http::Request& request, const http::Responder& responder);

// POST /score and /v1/score: scores of pairs of texts (vLLM), and of labels (SGLang).

// A body with `query` and `items` is SGLang's request. For a model that generates text, the scores
// are the probabilities of the tokens `label_token_ids` after query and item. For a classifier,
// they are the scores of its classes. A body with other fields is vLLM's request for scores of
// pairs, which needs an embedding model or a classifier (PairScores).
void HandleScore(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::pooling
