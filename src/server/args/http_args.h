// Flags of the HTTP server: access control, resource limits and the listening address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard {

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
};

void AddHttpFlags(CommandLine& app, HttpArgs& args);

// These functions throw Error kInvalid, which names the flag. The API keys are those of --api-key
// (default: SWITCHYARD_API_KEY) and the lines of --api-key-file.
std::vector<std::string> ReadApiKeys(const HttpArgs& args);
// --admin-api-key, default: SWITCHYARD_ADMIN_API_KEY.
std::string ReadAdminKey(const HttpArgs& args);
std::vector<std::string> ReadCorsOrigins(const HttpArgs& args);
size_t ReadMemoryLimit(const HttpArgs& args);  // bytes: "512M", "2G", "1000000"; 0: not given

}  // namespace switchyard
