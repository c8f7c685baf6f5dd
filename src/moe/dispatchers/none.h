// `--moe-a2a-backend none`: no row moves.
#pragma once

#include "moe/backends.h"

namespace switchyard {

DispatcherBackend NoneBackend();

}  // namespace switchyard
