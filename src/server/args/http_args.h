// Flags of the HTTP server: access control, resource limits, the listening address, logs and
// traces of requests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

// Flags of the HTTP server: access control, resource limits and the listening address.

class CommandLine;

struct HttpArgs {
  std::string uds;                                              // --uds
  std::string root_path;                                        // --root-path
  std::string ssl_certfile, ssl_keyfile, ssl_keyfile_password;  // --ssl-…
  std::string api_key;                                          // --api-key
  std::string api_key_file;                                     // --api-key-file
  std::string admin_api_key;                                    // --admin-api-key
  std::string cors_allow_origins;                               // --cors-allow-origins
  int max_connections = 4096;                                   // --max-connections
  int worker_threads = 0;                                       // --http-workers; 0: by CPUs
  std::string memory_limit;                                     // --http-memory-limit; empty: auto
  double queue_timeout_seconds = 0;                             // --request-queue-timeout; 0: none
  double running_timeout_seconds = 0;                           // --request-timeout; 0: none
  bool disable_page = false;                                    // --disable-page
};

void AddHttpFlags(CommandLine& app, HttpArgs& args);

// These functions throw Error kInvalid, which names the flag. The API keys are those of --api-key
// (default: SWITCHYARD_API_KEY) and the lines of --api-key-file.
std::vector<std::string> ReadApiKeys(const HttpArgs& args);
// --admin-api-key, default: SWITCHYARD_ADMIN_API_KEY.
std::string ReadAdminKey(const HttpArgs& args);
std::vector<std::string> ReadCorsOrigins(const HttpArgs& args);
size_t ReadMemoryLimit(const HttpArgs& args);  // bytes: "512M", "2G", "1000000"; 0: not given

// Flags of request logs, dumps and traces.

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
