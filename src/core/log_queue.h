// The queue and the level of the process logger.
#pragma once

#include <chrono>
#include <string>

namespace switchyard {

// Log output that never blocks the logging thread.

// From now on, a separate thread writes log lines to stderr from a bounded queue. A blocked stderr
// does not block logging threads. If the queue is full, lines are dropped; a later line reports
// their number. Call once per process, after InitLog.
void QueueLog();

// Waits until all queued lines are written, for at most `limit`.
void FlushLog(std::chrono::milliseconds limit);

// The level of the process logger, while the process runs.

// `level`: debug, info, warning or error; throws Error kInvalid for another value. Any thread may
// call it. Lines of this process only: each rank process has its own logger.
void SetLogLevel(const std::string& level);

}  // namespace switchyard
