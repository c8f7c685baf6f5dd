// Functions that register this example's runners under the name that --moe-runner-backend uses.
#pragma once

#include "moe/backends.h"

// plain_mlp for ranks on CPUs
void AddPlainMlp(switchyard::MoeBackends& backends);
// plain_mlp for ranks on GPUs
void AddGpuPlainMlp(switchyard::MoeBackends& backends);
