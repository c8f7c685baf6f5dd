// All-to-all that outlives ranks: `--moe-a2a-backend mooncake`.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// deepep, in the mode that `--deepep-mode` names, with an active-rank mask. A rank that stays
// silent in a stage for longer than `--elastic-ep-timeout` is lost, for all others alike and for
// good (elastic_ranks.h): nothing more is sent to it, its experts add nothing, and nobody waits for
// it. Weights are not scaled up for what is missing. A token none of whose experts was lost keeps
// its bits. active_ranks() and a line of the log say who was lost; to bring its experts back is up
// to whoever places them.
//
// With MoE-TP each EP group has a mask of its own. What ranks do together outside of the exchange
// (collectives of attention and of MoE-TP) does not outlive a rank by this.
//
// Data movement and memory are deepep's, plus a cache line; a stage costs one more atomic
// operation. Idea: Mooncake EP (masks and timeouts in the kernels), DeepEP's shrinking.
DispatcherBackend MooncakeBackend();

}  // namespace switchyard
