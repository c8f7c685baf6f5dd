// One request on its way through the proxy. Internal to proxy.cc and proxy_pairs.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "route/policy.h"
#include "route/proxy.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"

namespace switchyard::route {

// Another worker may answer: this one is starting, draining, restarting its ranks, or full.
inline bool MayRetry(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

inline bool IsEventStream(const std::string& content_type) {
  return content_type.starts_with(http::kEventStream);
}

// A request on its way, over all attempts.
class Proxy::Exchange {
 public:
  Exchange(std::shared_ptr<const http::Request> request, http::Responder responder)
      : request(std::move(request)), responder(std::move(responder)) {}

  std::shared_ptr<const http::Request> request;  // for the worker of the present attempt
  std::optional<http::Responder> responder;      // empty after a stream was cut off
  PromptInfo prompt;
  std::vector<int64_t> tried;
  std::string failure;            // of the last attempt
  bool begun = false;             // the head of a stream was sent
  bool events_sent = false;       // the client has received a part of the response
  bool may_try_more = true;       // another worker exists, and retries are left
  bool at_session = false;        // the worker was selected by the request's session
  bool worker_unhealthy = false;  // the present attempt was cancelled: its worker became unhealthy
  std::shared_ptr<Upstream*> upstream = std::make_shared<Upstream*>(nullptr);  // to cancel

  // Ends the exchange with an error, in the way that its state permits.
  void Fail(int status, const std::string& message) {
    if (!begun) {
      responder->SendError(status, message);
      return;
    }
    responder->Write(http::SseEvent(http::ErrorBody(status, message)));
    responder.reset();  // without an end, so that the client detects an incomplete response
  }
};

// Counts an exchange as open at its worker during its lifetime.
class Proxy::OpenAt {
 public:
  OpenAt(Proxy& proxy, int64_t id, Exchange& exchange)
      : proxy_(proxy), id_(id), exchange_(exchange) {
    proxy_.exchanges_[id_].insert(&exchange_);
  }
  ~OpenAt() {
    proxy_.exchanges_[id_].erase(&exchange_);
    proxy_.workers_.Release(id_);
  }
  OpenAt(const OpenAt&) = delete;
  OpenAt& operator=(const OpenAt&) = delete;

 private:
  Proxy& proxy_;
  const int64_t id_;
  Exchange& exchange_;
};

}  // namespace switchyard::route
