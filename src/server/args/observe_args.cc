#include "server/args/observe_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "server/trace/endpoint.h"

namespace switchyard {
namespace {

constexpr const char* kGroup = "Request logs and traces";

}  // namespace

void AddObserveFlags(CommandLine& app, ObserveArgs& a) {
  app.Switch("--log-requests", a.log_requests, kGroup, "Logs one line per request");
  app.Switch("--enable-trace", a.enable_trace, kGroup,
             "Sends spans of requests to an OpenTelemetry collector, as OTLP/HTTP with JSON");
  app.Flag("--otlp-traces-endpoint", a.otlp_traces_endpoint, kGroup,
           "URL of the collector: http://HOST:PORT/PATH. Without a path: /v1/traces");
}

void CheckObserveFlags(const CommandLine& app, const ObserveArgs& a) {
  if (app.Given("--otlp-traces-endpoint") && !a.enable_trace)
    throw Invalid("--otlp-traces-endpoint needs --enable-trace");
  if (a.enable_trace) trace::Endpoint::Parse(a.otlp_traces_endpoint);
}

}  // namespace switchyard
