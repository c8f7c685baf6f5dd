// Records of requests: open, served and traced.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "server/http/http_server.h"

namespace switchyard::http {

// What observers of the HTTP server get about each request.

// The W3C trace context of one request: its own span in the trace of its client.
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16 hexadecimal digits, the client's span; empty: the trace begins here
  std::string span_id;    // 16 hexadecimal digits, the span of this request
};

// One request whose response has ended. References are valid during the call only.
struct ServedRequest {
  const std::shared_ptr<const Request>& request;  // SummaryOf it, unless it was kept
  const std::string& route;
  int status = 0;  // 0: the client disconnected before the head
  bool cut = false;
  ServedTokens tokens;
  std::chrono::steady_clock::time_point begin, end;
  // The response's payload, without transfer coding; empty unless the observer keeps it.
  const std::string& response;
  bool response_truncated = false;
  bool kept = false;  // RequestObserver::keeps was true when the request arrived
};

// Owned by the server's options. I/O threads call it, so it must not block.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // Whether requests get a TraceContext.
  virtual bool traces() const { return false; }
  // Whether the request is kept for OnServed.
  virtual bool keeps(const Request&) const { return false; }
  // Maximum bytes of the response to such a request that are kept for OnServed. Fewer are kept if
  // --http-memory-limit is exhausted.
  virtual size_t kept_bytes() const { return 0; }
  // Called before the handler of the request, if the request is kept.
  virtual void OnRequest(const std::shared_ptr<const Request>&) {}
  virtual void OnServed(const ServedRequest&) = 0;
};

// A copy of what an observer needs of a request that it does not keep.
std::shared_ptr<const Request> SummaryOf(const Request& request);

// Logs the request, and calls the observer of the options.
void ReportServed(const ServerOptions& options, const ServedRequest& served);

// Counts open requests. Internal to this folder.

// RAII: counts a request as open while this object exists.
class OpenRequest {
 public:
  explicit OpenRequest(std::atomic<size_t>& count) : count_(count) { ++count_; }
  ~OpenRequest() { --count_; }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

 private:
  std::atomic<size_t>& count_;
};

// Request ids and trace context of requests.

// X-Request-Id if it has 1 to 128 printable characters without spaces. Otherwise a new id of 32
// hexadecimal digits.
std::string RequestId(const Request& request);

// The traceparent header if it is valid by W3C Trace Context, otherwise empty.
std::string TraceParent(const Request& request);

// A new span in the trace of the traceparent header, or in a new trace. Null if the header says
// that the trace is not sampled.
std::shared_ptr<const TraceContext> NewTrace(const Request& request);

// The end of a request's log line: "" or ", model m, 12 prompt tokens (8 cached), …".
std::string DescribeTokens(const ServedTokens& served);

}  // namespace switchyard::http
