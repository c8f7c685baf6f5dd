// Writes events as a Chrome trace, the format that Perfetto and chrome://tracing read.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "profile/event_buffer.h"

namespace switchyard::profile {

// A trace file of one rank.
struct TraceFile {
  std::filesystem::path path;
  std::string profile;         // name of the profile
  int rank = 0;                // pid of all events
  std::string rank_title;      // "TP1 EP1"
  bool record_shapes = false;  // whether events have "Input Dims", as in traces of PyTorch
  int64_t dropped = 0;         // number of events that the buffer dropped
  std::optional<Stage> stage;  // if set, the file has only the events of this stage
};

// Writes one JSON object with traceEvents, in the order in which the events begin, outer events
// first. Times are microseconds of the host's steady_clock, so files of ranks on one host share a
// time axis. The file gets its final name when it is complete. Returns the number of events
// written. If there are no events of the stage, writes no file. Error kResource names the file.
size_t WriteTrace(const TraceFile& file, std::span<const Event> events);

// Error kInvalid if `dir` cannot be created, or if no file can be created in it.
void CheckDirectory(const std::filesystem::path& dir, int rank);

}  // namespace switchyard::profile
