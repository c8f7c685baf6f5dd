// A dispatcher of this example, for --moe-a2a-backend mailbox.
#pragma once

#include "moe/backends.h"

// Registers it for ranks on CPUs.
void AddMailbox(switchyard::MoeBackends& backends);
