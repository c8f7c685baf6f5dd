#include "server/http/dispatch.h"

#include <exception>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/http/error_body.h"

namespace switchyard::http {
namespace {

void Call(const Handler& handler, std::shared_ptr<const Request> request,
          const Responder& responder) {
  try {
    handler(std::move(request), responder);
  } catch (const Error& e) {
    responder.SendError(e);
  } catch (const std::bad_alloc&) {
    LOG_ERROR("http: a handler ran out of memory");
    responder.SendError(503, "The server is out of memory for this request");
  } catch (const std::exception& e) {
    LOG_ERROR("http: a handler failed: {}", e.what());
    responder.SendError(500, "The server failed to process this request");
  } catch (...) {
    LOG_ERROR("http: a handler threw an object that is not a std::exception");
    responder.SendError(500, "The server failed to process this request");
  }
}

}  // namespace

void Dispatch(const Admission& admission, std::shared_ptr<const Request> request,
              const Responder& responder, WorkerPool& workers) {
  if (admission.handler == nullptr) {
    const std::string body = admission.status >= 400
                                 ? ErrorBody(admission.status, admission.message, admission.code)
                                 : "";
    responder.Send(admission.status, body.empty() ? "" : kJson, body, admission.headers);
    return;
  }
  if (request->body.empty()) return Call(*admission.handler, std::move(request), responder);
  const auto lane = WorkerPool::LaneOf(request->body.size());
  const bool taken = workers.Post(
      lane, [handler = admission.handler, request = std::move(request), responder]() mutable {
        // Skip the work if the client disconnected while its request was queued.
        if (!responder.Closed()) Call(*handler, std::move(request), responder);
      });
  if (!taken) responder.SendError(503, "Too many requests are queued for parsing: try again later");
}

}  // namespace switchyard::http
