#pragma once

#include <cstdint>

namespace switchyard {

// The ranks of a server since its start. An epoch is the time between two restarts. Plain value.
struct RankHistory {
  int64_t epoch = 1;
  int64_t deaths = 0;   // ends of ranks that were followed by a restart, or by the server's end
  int64_t changes = 0;  // pauses for planned restarts and changes of the layout
  double pause_seconds = 0;  // total time without ranks
  double paused_for = 0;     // seconds of the present pause; 0: there are ranks
  double held_for = 0;       // seconds for which some requests have waited for ranks; 0: none waits
};

}  // namespace switchyard
