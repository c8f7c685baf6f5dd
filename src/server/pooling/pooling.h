// Endpoints of embedding models and classifiers.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::pooling {

void Register(http::Server& server, Service& service);

}  // namespace switchyard::pooling
