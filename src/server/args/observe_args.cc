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
  app.Flag("--log-requests-level", a.log_requests_level, kGroup,
           "With --log-requests: 0: no text; 1: also the fields of a request without its prompt; "
           "2: also the prompt and the response, up to 2048 bytes each; 3: all of both")
      .Range(0, 3);
  app.Flag("--dump-requests-folder", a.dump_requests_folder, kGroup,
           "Folder for files with each request and its response, one JSON object per line");
  app.Flag("--crash-dump-folder", a.crash_dump_folder, kGroup,
           "Folder for the requests that are open, or have ended in the last five minutes, when "
           "ranks end unexpectedly");
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
