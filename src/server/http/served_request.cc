#include "server/http/served_request.h"

#include "core/log.h"
#include "server/http/request_trace.h"

namespace switchyard::http {

std::shared_ptr<const Request> SummaryOf(const Request& request) {
  auto summary = std::make_shared<Request>();
  summary->method = request.method;
  summary->path = request.path;
  summary->peer = request.peer;
  summary->id = request.id;
  summary->trace = request.trace;
  return summary;
}

void ReportServed(const ServerOptions& options, const ServedRequest& served) {
  const RequestLog* const log = options.request_log.get();
  const bool visible = log ? log->enabled.load() : options.log_requests;
  const LogLevel level = visible ? LogLevel::kInfo : LogLevel::kDebug;
  if (Logs(level)) {
    using std::chrono::duration_cast, std::chrono::milliseconds;
    const Request& request = *served.request;
    const std::string trace = request.trace ? ", trace " + request.trace->trace_id : "";
    Log(level, "http: {} {} {} {} -> {}{} in {} ms{}{}", request.peer, request.id, request.method,
        request.path, served.status, served.cut ? ", cut off" : "",
        duration_cast<milliseconds>(served.end - served.begin).count(),
        DescribeTokens(served.tokens), trace);
  }
  if (options.observer) options.observer->OnServed(served);
}

}  // namespace switchyard::http
