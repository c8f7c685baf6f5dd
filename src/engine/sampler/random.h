// Random numbers that are a pure function of a key and a counter.
#pragma once

#include <cstdint>

namespace switchyard {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), one draw: uniform in [0, 1) with 53 bits. There is no state to save, so a token's draw
// does not depend on what else was drawn, nor on whether its request was interrupted.
double UniformDraw(uint64_t key, uint64_t counter);

// A key for a request that brings none, from the engine's seed and the request's id.
uint64_t DeriveSeed(uint64_t random_seed, uint64_t request_id);

}  // namespace switchyard
