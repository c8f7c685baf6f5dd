// `--moe-a2a-backend deepep`: all-to-all in the mode of `--deepep-mode`.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// Mode auto uses low_latency for decode batches and normal for others. Error kInvalid names the
// flag if the mode is unknown.
DispatcherBackend DeepEpBackend();

}  // namespace switchyard
