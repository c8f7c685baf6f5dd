#include "server/http/served_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "core/log.h"

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

std::string RequestId(const Request& request) {
  const std::string_view given = request.Header("X-Request-Id");
  const bool usable =
      !given.empty() && given.size() <= 128 &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (usable) return std::string(given);
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

std::string TraceParent(const Request& request) {
  const std::string_view given = request.Header("traceparent");
  // Format: version "-" trace-id "-" parent-id "-" flags, in lower-case hexadecimal.
  if (given.size() != 55 || given[2] != '-' || given[35] != '-' || given[52] != '-') return {};
  for (size_t i = 0; i < given.size(); ++i) {
    if (i == 2 || i == 35 || i == 52) continue;
    const bool hex = (given[i] >= '0' && given[i] <= '9') || (given[i] >= 'a' && given[i] <= 'f');
    if (!hex) return {};
  }
  return std::string(given);
}

std::shared_ptr<const TraceContext> NewTrace(const Request& request) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  const auto digits = [] {
    uint64_t id = 0;
    while (id == 0) id = random();  // an id of zeros is invalid
    return fmt::format("{:016x}", id);
  };
  TraceContext trace{.trace_id = {}, .parent_id = {}, .span_id = digits()};
  const std::string given = TraceParent(request);
  const bool valid = !given.empty() && given.substr(0, 2) != "ff" &&
                     given.find_first_not_of('0', 3) < 35 && given.find_first_not_of('0', 36) < 52;
  if (!valid) {
    trace.trace_id = digits() + digits();
    return std::make_shared<TraceContext>(std::move(trace));
  }
  const bool sampled =
      (given[54] >= '0' && given[54] <= '9' ? given[54] - '0' : given[54] - 'a' + 10) & 1;
  if (!sampled) return nullptr;
  trace.trace_id = given.substr(3, 32);
  trace.parent_id = given.substr(36, 16);
  return std::make_shared<TraceContext>(std::move(trace));
}

std::string DescribeTokens(const ServedTokens& served) {
  if (served.model.empty()) return {};
  std::string text = fmt::format(", model {}, {} prompt tokens ({} cached), {} completion tokens",
                                 served.model, served.prompt, served.cached, served.completion);
  if (served.first_token_seconds >= 0)
    text += fmt::format(", first token after {:.0f} ms", 1e3 * served.first_token_seconds);
  if (!served.response_id.empty()) text += ", response " + served.response_id;
  return text;
}

}  // namespace switchyard::http
