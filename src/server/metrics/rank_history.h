#pragma once

#include <cstdint>

namespace switchyard {

// The ranks of a server since its start. An epoch is the time between two restarts. Plain value.
struct RankHistory {
  int64_t epoch = 1;
  int64_t deaths = 0;  // ends of ranks that were followed by a restart, or by the server's end
  double pause_seconds = 0;  // without ranks, all pauses
  double paused_for = 0;     // seconds of the present pause; 0: there are ranks
  double held_for = 0;       // seconds since some requests have had no ranks; 0: all have
};

}  // namespace switchyard
