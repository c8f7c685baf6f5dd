// Sends a planned load to a server and records the arrival times of tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/serve/load.h"
#include "bench/serve/summary.h"

namespace switchyard::bench {

// Sends one GET or POST and returns the response body. Error kPeer if the connection fails or the
// status is not 200.
std::string Ask(const ServeOptions& options, const std::string& method, const std::string& path,
                const std::string& body = {});

struct LoadRun {
  std::vector<RequestRecord> records;  // in the order of the plan
  double seconds = 0.0;                // from the start to the last response
};

// Runs all requests on the calling thread, each with its own connection and a streamed response. If
// a request fails, its record has the reason, and RunLoad does not throw. `progress` is called
// after each request, with the numbers of finished and failed requests.
LoadRun RunLoad(const ServeOptions& options, const std::vector<PlannedRequest>& plan,
                const std::function<void(int done, int failed)>& progress);

}  // namespace switchyard::bench
