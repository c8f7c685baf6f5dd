// Sends a load to a server and writes down when tokens come.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/serve/load.h"
#include "bench/serve/summary.h"

namespace switchyard::bench {

// One GET or POST with an empty body, until its whole answer. Error kPeer where there is no
// server, or where it answers anything but 200.
std::string Ask(const ServeOptions& options, const std::string& method, const std::string& path);

struct LoadRun {
  std::vector<RequestRecord> records;  // in the order of the plan
  double seconds = 0.0;                // until the last answer
};

// Every request has a connection of its own and streams; all of them run on the calling thread.
// Requests that fail say why in their record; nothing is thrown for them. `progress` is called
// after each that ended, with how many have, and how many of them failed.
LoadRun RunLoad(const ServeOptions& options, const std::vector<PlannedRequest>& plan,
                const std::function<void(int done, int failed)>& progress);

}  // namespace switchyard::bench
