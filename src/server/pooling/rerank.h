// POST /rerank, /v1/rerank and /v2/rerank: documents by their score with a query (Jina, Cohere).
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

void HandleRerank(Service& service, const http::Request& request, const http::Responder& responder);

}  // namespace switchyard::pooling
