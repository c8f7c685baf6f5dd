// Prints the schedules of a server.
#pragma once

#include <string>

#include "engine/config.h"

namespace switchyard {

// The operations of a prefill step and of a decode step with these flags (`--print-schedule`), in
// the order in which a rank runs them. With --enable-single-batch-overlap the down projection is
// separate if the exchange backend can return outputs in parts. Apart from that, the text has the
// same operations for every exchange backend, although the backend `none` sends no rows. With
// --enable-two-batch-overlap the schedules have two micro-batches. Reads only the model's
// config.json, and throws Error if it cannot be read.
std::string ServeScheduleText(const EngineConfig& config);

}  // namespace switchyard
