// From a request that has been read to its handler. Internal to this folder.
#pragma once

#include <memory>

#include "server/http/admission.h"
#include "server/http/http_server.h"
#include "server/http/worker_pool.h"

namespace switchyard::http {

// Answers what `admission` refuses; else calls its handler: here where the request has no body, on
// a worker where it has one. 503 where too many wait for a worker. Nothing that a handler throws
// leaves this function.
void Dispatch(const Admission& admission, std::shared_ptr<const Request> request,
              const Responder& responder, WorkerPool& workers);

}  // namespace switchyard::http
