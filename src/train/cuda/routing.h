// Router and rows of experts, forward and backward. Semantics: train/layers/router.h and moe.h.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

// Values of RouterConfig::Scoring.
enum class Scoring : uint8_t { kSoftmax = 0, kSigmoid = 1, kTopKSoftmax = 2 };

struct RouterShape {
  int64_t m = 0;    // tokens
  int experts = 0;  // E, at most 512
  int top_k = 0;    // at most 16
  Scoring scoring = Scoring::kSoftmax;
  bool renormalize = false;
  float scaling = 1.0f;  // routed_scaling_factor
};

// The logits [m, E] are float32: LinearForward with float32 weights. The experts of each token are
// selected by SelectExpertsOnDevice (moe/cuda/router/select_experts.h), the router of serving, or
// given (routing replay). An id −1 is a slot without expert.

// scores [m, E] and weights [m, k] from the logits and the selected experts `ids` [m, k].
void RouterWeights(const RouterShape& shape, const float* logits, const int32_t* ids, float* scores,
                   float* weights, Stream stream);

// Adds the number of tokens that choose each expert to counts. `begins` null: counts [E] of all m
// tokens. Else counts [sequences, E] of each sequence; begins [sequences + 1] in tokens of this
// rank, from 0 to m; sequences may be empty. Zero the counts first.
void CountExperts(const RouterShape& shape, const int32_t* ids, const int32_t* begins,
                  int sequences, int32_t* counts, Stream stream);

// Coefficients of the balance losses: c[i, e] = weight / step_tokens · E / (k · tokens[i]) ·
// counts[i, e] for i in [0, sets). The loss is Σ c · p, so c is also the gradient of p. `tokens`
// [sets] on the device: tokens that were counted (all ranks for the batch loss), below 1: 1.
void BalanceCoefficients(const RouterShape& shape, const int32_t* counts, const int32_t* tokens,
                         int sets, double weight, double step_tokens, float* coefficients,
                         Stream stream);

struct BalanceParams {
  const float* batch = nullptr;     // [E] coefficients; null: no such loss
  const float* sequence = nullptr;  // [sequences, E] coefficients; null: no such loss
  const int32_t* begins = nullptr;  // [sequences + 1] as in CountExperts; needed with `sequence`
  int sequences = 0;
  float z = 0;  // weight of the z-loss / step_tokens; 0: no such loss
};
// losses [m]: the balance losses of each token. Sum them with SumInOrder (head_loss.h).
void BalanceLossesOfTokens(const RouterShape& shape, const BalanceParams& balance,
                           const float* logits, const float* scores, float* losses, Stream stream);

// dlogits [m, E] from dweights [m, k] and the balance losses.
void RouterGradient(const RouterShape& shape, const BalanceParams& balance, const float* logits,
                    const float* scores, const int32_t* ids, const float* weights,
                    const float* dweights, float* dlogits, Stream stream);

// Order of the slots by expert, then by slot. Slot t · k + j is the j-th expert of token t.
struct SlotOrder {
  int32_t* position = nullptr;  // [slots] expert row of each slot, −1: none
  int32_t* begins = nullptr;  // [experts + 1] the first expert row of each expert, without padding
};
// ids [slots]: local experts, or −1. scratch: SlotOrderScratch(…) int32.
int64_t SlotOrderScratch(int64_t slots, int experts);
void OrderSlots(const int32_t* ids, int64_t slots, int experts, const SlotOrder& order,
                int32_t* scratch, Stream stream);

// Expert rows of this rank's tokens. Below, slots[r] is the slot whose position is r.
struct ExpertRowsShape {
  int64_t m = 0, hidden = 0;  // hidden: a multiple of 4
  int k = 0;
  const int32_t* position = nullptr;  // [m, k] of SlotOrder
};
// out[r] = x[slots[r] / k]; out [capacity, hidden].
void GatherExpertRows(const ExpertRowsShape& shape, ConstArray x, Array out, Stream stream);
// y[t] = base[t] + Σ_j weights[t, j] · outputs[position[t, j]], in slot order. weights null: 1 (the
// gradient of GatherExpertRows). base null: 0; may be y.
void CombineExpertRows(const ExpertRowsShape& shape, ConstArray outputs, const float* weights,
                       ConstArray base, Array y, Stream stream);
// doutputs[r] = weights[slots[r]] · dy[slots[r] / k]; dweights[slots[r]] = dy · outputs[r]. Slots
// without expert get dweights 0. doutputs may be outputs.
void CombineExpertRowsGradient(const ExpertRowsShape& shape, ConstArray dy, ConstArray outputs,
                               const float* weights, Array doutputs, float* dweights,
                               Stream stream);

}  // namespace switchyard::train::gpu
