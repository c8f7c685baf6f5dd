// Log lines that never block the thread that writes them.
#pragma once

#include <chrono>

namespace switchyard {

// From here on lines go to stderr through a bounded queue and a thread of its own, so that a reader
// of stderr that stops reading stops nothing else. Where the queue is full, lines are dropped and
// counted in a later line. After InitLog; once a process.
void QueueLog();

// Waits until what was logged is written, for at most `limit`.
void FlushLog(std::chrono::milliseconds limit);

}  // namespace switchyard
