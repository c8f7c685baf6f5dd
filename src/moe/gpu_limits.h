// Largest sizes that the kernels of moe/cuda support. Without includes, as device code reads it.
#pragma once

namespace switchyard::cuda {

constexpr int kMaxRouterExperts = 512;  // logical
constexpr int kMaxRouterGroups = 32;
constexpr int kMaxTopK = 16;
constexpr int kMaxLocalExperts = 512;  // physical, of one GPU
constexpr int kMaxExchangeRanks = 16;  // maximum size of an EP group
constexpr int kMaxExchangeTopK = 16;   // slots of a token

}  // namespace switchyard::cuda
