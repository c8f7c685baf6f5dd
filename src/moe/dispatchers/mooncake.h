// Fault-tolerant all-to-all: `--moe-a2a-backend mooncake`.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// deepep in the mode of `--deepep-mode`, with an active-rank mask. A rank that does not end a stage
// within `--elastic-ep-timeout` is lost, permanently and for all other ranks (elastic_ranks.h).
// After that nothing is sent to it, its experts contribute nothing, and no rank waits for it. The
// weights of a token's remaining experts are not rescaled. The result of a token without lost
// experts stays bit-identical. active_ranks() and a log line report lost ranks; their experts can
// be restored by a new placement.
//
// With MoE-TP each EP group has its own mask. Operations outside of the exchange (collectives of
// attention and of MoE-TP) do not tolerate a lost rank.
//
// Traffic and memory are deepep's plus one cache line; a stage costs one more atomic operation.
// Based on Mooncake EP (masks and timeouts in the kernels) and DeepEP's shrinking.
DispatcherBackend MooncakeBackend();

}  // namespace switchyard
