// Rules of recurrent states. A header of its own: files for one instruction set include it.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// How a row changes the state S [key_dim, value_dim] of a head, and its output:
//   kDelta     S = decay · S;  S = S + k ⊗ step (v − Sᵀ k);  out = Sᵀ q
//              decay = exp(rate · softplus(a + bias)), step = sigmoid(b)
//   kKeyDelta  the same with a decay for each row of S, from key_dim values of a and of bias. With
//              a bound < 0: decay = exp(bound · sigmoid(−rate · (a + bias)))
//   kMamba2    S = decay · S + k ⊗ step v;  out = Sᵀ q + skip · v
//              step = max(softplus(a + bias), min_step), decay = exp(rate · step)
//   kFixed     the same with step = 1 and without skip
// The delta rules divide q and k by their norms first, and q by √key_dim.
enum class StateRule : uint8_t { kDelta, kKeyDelta, kMamba2, kFixed };

constexpr bool IsDeltaRule(StateRule rule) {
  return rule == StateRule::kDelta || rule == StateRule::kKeyDelta;
}

// States within the rows of a sequence that a pass may write (StateSpan::copies).
constexpr int kMaxStateCopies = 8;

}  // namespace switchyard::kernels
