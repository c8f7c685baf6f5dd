// `--moe-a2a-backend deepep`: all-to-all in the mode that `--deepep-mode` names.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// Mode auto sends decode batches by low_latency and the rest by normal. Error kInvalid names the
// flag where the mode is unknown.
DispatcherBackend DeepEpBackend();

}  // namespace switchyard
