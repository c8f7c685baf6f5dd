// Largest sizes that the kernels of moe/cuda support. This file includes nothing, because device
// code includes it.
#pragma once

namespace switchyard::cuda {

constexpr int kMaxRouterExperts = 512;  // logical experts
constexpr int kMaxRouterLogits = 768;   // logical experts and experts without computation
constexpr int kMaxRouterGroups = 32;
constexpr int kMaxTopK = 32;           // lanes of a warp, each of which has a slot
constexpr int kMaxLocalExperts = 512;  // physical experts of one GPU
constexpr int kMaxExchangeRanks = 16;  // maximum size of an EP group
constexpr int kMaxExchangeTopK = 32;   // maximum number of slots of a token

}  // namespace switchyard::cuda
