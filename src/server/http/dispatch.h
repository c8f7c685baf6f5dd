// Calls the handler of a complete request. Internal to this folder.
#pragma once

#include <memory>

#include "server/http/admission.h"
#include "server/http/http_server.h"
#include "server/http/worker_pool.h"

namespace switchyard::http {

// Sends the response of `admission` if it has no handler. Otherwise calls the handler: on a worker
// thread if the request has a body, else within this call. Sends 503 if the worker queue is full.
// Exceptions of a handler are caught and become error responses.
void Dispatch(const Admission& admission, std::shared_ptr<const Request> request,
              const Responder& responder, WorkerPool& workers);

}  // namespace switchyard::http
