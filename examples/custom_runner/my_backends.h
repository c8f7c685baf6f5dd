// The backends of this example, by the names under which flags choose them.
#pragma once

#include "moe/backends.h"

// --moe-runner-backend plain_mlp
void AddPlainMlp(switchyard::MoeBackends& backends);
// --moe-a2a-backend mailbox
void AddMailbox(switchyard::MoeBackends& backends);
