// The experts of made-up tokens, for `expert-chain` and for the entries that follow from it.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace switchyard::bench {

// Calls of a case of `expert-chain`, each with its own choices. The generator is seeded with the
// number of tokens.
constexpr int kExpertChainCalls = 8;

// Each of `tokens` tokens takes `slots` different ones of `experts` experts: [tokens, slots]. They
// are equally likely (`popular` 0), or the n-th of a random order has a weight of exp(−n /
// popular).
std::vector<int32_t> ChooseExperts(int tokens, int experts, int slots, double popular,
                                   std::mt19937& random);

// The rows of each expert for the choices of ChooseExperts.
std::vector<int32_t> RowsOfExperts(const std::vector<int32_t>& chosen, int experts);

}  // namespace switchyard::bench
