// How much of the messages in a trace of a rank on a GPU runs beside computation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace switchyard::profile {

// Times are milliseconds, summed over the steps of the trace.
struct MessageOverlap {
  // Messages of one name. Messages of a rank run one after another.
  struct Kind {
    int64_t count = 0, bytes = 0;
    double time = 0;  // from the start of each message to its end, including waits for other ranks
    double hidden = 0;  // the part of it in `computing`
  };
  std::map<std::string, Kind> kinds;
  Kind all;
  int64_t steps = 0;
  double step_time = 0;  // of the steps on the host
  // Time within operations on the GPU. It includes gaps between the kernels of an operation, in
  // which the stream waits for the host to launch the next one.
  double computing = 0;
  double waiting = 0;  // time in which its operations waited for messages
};

// Reads a file of WriteTrace. An operation runs from its beginning to its end, except within events
// named kWait. Throws Error kNotFound or kInvalid, naming the file, if it is missing, is not a
// trace, has no operations on a GPU, or lacks dropped events.
MessageOverlap ReadMessageOverlap(const std::filesystem::path& trace);

// A table of the kinds, the largest first, and the sums; times for each step.
std::string Describe(const MessageOverlap& overlap);

}  // namespace switchyard::profile
