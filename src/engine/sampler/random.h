// Counter-based random numbers: a pure function of a key and a counter.
#pragma once

#include <cstdint>

namespace switchyard {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), one draw: uniform in [0, 1) with 53 bits. Stateless, so that a token's draw depends
// neither on other draws nor on retractions of its request.
double UniformDraw(uint64_t key, uint64_t counter);

// The key of a request without a seed, from the engine's seed and the request's id.
uint64_t DeriveSeed(uint64_t random_seed, uint64_t request_id);

}  // namespace switchyard
