#pragma once

#include <cstdint>

namespace switchyard {

// Counts of starts and ends of the ranks since the server started. An epoch is the time between two
// restarts of the ranks. Plain value.
struct RankHistory {
  int64_t epoch = 1;
  int64_t deaths = 0;   // ends of ranks that were followed by a restart, or by the server's end
  int64_t changes = 0;  // pauses for planned restarts and changes of the layout
  double pause_seconds = 0;  // total time without serving ranks, from the first start on
  double paused_for = 0;     // seconds since the present pause began; 0: no pause
  double held_for = 0;       // seconds for which requests have been held back; 0: none are
};

}  // namespace switchyard
