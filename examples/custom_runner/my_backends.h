// Functions that register this example's backends under the names that flags use.
#pragma once

#include "moe/backends.h"

// --moe-runner-backend plain_mlp
void AddPlainMlp(switchyard::MoeBackends& backends);
// --moe-runner-backend plain_mlp for ranks on GPUs
void AddGpuPlainMlp(switchyard::MoeBackends& backends);
// --moe-a2a-backend mailbox
void AddMailbox(switchyard::MoeBackends& backends);
