// Log output that never blocks the logging thread.
#pragma once

#include <chrono>

namespace switchyard {

// From now on, a separate thread writes log lines to stderr from a bounded queue. A blocked stderr
// does not block logging threads. If the queue is full, lines are dropped; a later line reports
// their number. Call once per process, after InitLog.
void QueueLog();

// Waits until all queued lines are written, for at most `limit`.
void FlushLog(std::chrono::milliseconds limit);

}  // namespace switchyard
