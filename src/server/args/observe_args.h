// Flags of request logs, dumps and traces.
#pragma once

#include <string>

namespace switchyard {

class CommandLine;

struct ObserveArgs {
  bool log_requests = false;         // --log-requests
  bool enable_trace = false;         // --enable-trace
  int log_requests_level = 0;        // --log-requests-level
  std::string dump_requests_folder;  // --dump-requests-folder; empty: none
  std::string crash_dump_folder;     // --crash-dump-folder; empty: none
  std::string otlp_traces_endpoint = "http://127.0.0.1:4318/v1/traces";  // --otlp-traces-endpoint
};

void AddObserveFlags(CommandLine& app, ObserveArgs& args);
// Throws Error kInvalid for an invalid endpoint, and for an endpoint without --enable-trace.
void CheckObserveFlags(const CommandLine& app, const ObserveArgs& args);

}  // namespace switchyard
