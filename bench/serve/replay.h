// Requests of a file that `serve --dump-requests-folder` or `--crash-dump-folder` has written.
#pragma once

#include <string>
#include <vector>

#include "bench/serve/load.h"

namespace switchyard::bench {

struct Replay {
  std::vector<PlannedRequest> plan;  // in the order of arrival, the first at 0 s
  int skipped = 0;                   // lines of other endpoints, and of several prompts
};

// Reads the requests to /generate, /v1/completions and /v1/chat/completions with a single prompt.
// They are streamed, and have no names, because names must be unique. Throws Error kInvalid that
// names the file, or the file and the malformed line.
Replay ReadReplay(const std::string& file);

}  // namespace switchyard::bench
