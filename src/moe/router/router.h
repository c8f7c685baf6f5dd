// The router: selects experts and weights for each token.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parallel.h"
#include "quant/weight_view.h"

namespace switchyard {

// Parameters of the router. It selects k (id, weight) pairs from a token's expert logits. The enums
// and fields below cover all differences between model families.
struct RouterConfig {
  enum class Scoring : uint8_t {
    kSoftmax,      // scores = softmax over all experts (Mixtral, Qwen, OLMoE, DeepSeek-V2)
    kSigmoid,      // scores = sigmoid of each logit (DeepSeek-V3, GLM-4-MoE)
    kTopKSoftmax,  // the k largest logits, then softmax over those k (gpt-oss)
    // Two selections, each of the largest remaining logit. The weight is the softmax of this logit
    // among the logits near it (Phi-3.5-MoE). A logit is near if it is less than 2 · jitter below,
    // relative to the larger magnitude of the two. Liu et al., "GRIN: GRadient-INformed MoE"
    // (https://arxiv.org/abs/2409.12136). Only with k = 2, without groups and correction bias.
    kSparseMixer,
    kTopKSigmoid,   // the k largest logits, then the sigmoid of each (Llama 4)
    kSqrtSoftplus,  // scores = sqrt(ln(1 + e^x)) of each logit x (DeepSeek-V4)
  };
  enum class GroupScore : uint8_t { kMax, kTop2Sum };  // score of an expert group

  int num_experts = 0;
  int top_k = 0;
  // Experts without computation: their output is their input row (LongCat-Flash). Their logits
  // follow those of the experts. The rank that routes a token adds their outputs, so these slots
  // are not dispatched. Only without groups.
  int zero_experts = 0;
  Scoring scoring = Scoring::kSoftmax;
  bool renormalize = false;  // weights are divided by the sum of the k weights
  // Group-limited routing: experts form num_groups contiguous groups, and only experts of the
  // topk_groups best groups are eligible.
  int num_groups = 1, topk_groups = 1;
  GroupScore group_score = GroupScore::kMax;
  float routed_scaling_factor = 1.0f;
  float jitter = 0.0f;  // used by kSparseMixer
  // A weight multiplies the expert's input row instead of its output (Llama 4). So rows are scaled
  // before dispatch, and are dispatched with weight 1. Only with k = 1.
  bool scales_input = false;
  // The experts of a token depend only on its id, and their weights on the logits (hash routing of
  // DeepSeek-V4). The router's rows have the token's id as a further, last element. Only with
  // kSqrtSoftplus, without groups and correction bias.
  bool by_token = false;

  int num_logits() const { return num_experts + zero_experts; }
};

// Selected experts of a batch. Id −1: the slot has no expert (weight 0). The order of slots is the
// reduction order of combine.
struct TopK {
  int64_t tokens = 0;
  int k = 0;
  std::vector<int32_t> ids;    // [tokens, k] logical experts
  std::vector<float> weights;  // [tokens, k], including routed_scaling_factor
  // [tokens] the first expert whose score is not finite; −1: none. Such a token gets experts 0 to k
  // - 1 with weights NaN, so that its request ends with an error on every rank.
  std::vector<int32_t> bad_experts;
};

struct RouterWeights {
  WeightView w;                 // [num_logits, H]
  const float* bias = nullptr;  // [num_logits], added to the logits; or null
  // [num_logits], added to the scores for selection only; or null.
  const float* correction_bias = nullptr;
  // [token_rows, top_k] the experts of each token id, with RouterConfig::by_token.
  const int32_t* token_experts = nullptr;
  int64_t token_rows = 0;
};

// Selects experts: logits [tokens, num_logits] → *out. Ids from num_experts on are experts without
// computation. Ties go to the lower id, so that every rank
// selects the same experts. Slots are in order of selection, best first. If a score of a token (a
// logit, or a logit with its correction bias) is NaN or infinite, the token is marked in
// TopK::bad_experts. A correction bias of −∞ excludes an expert. If no eligible expert is left for
// a slot, its id is −1.
void SelectExperts(const RouterConfig& config, const float* logits, int64_t tokens,
                   const float* correction_bias, TopK* out, ThreadPool& pool);

// With RouterConfig::by_token: takes the experts of each token from weights.token_experts. The id
// of token t is ids[t · stride], a whole number below weights.token_rows. Logits are checked as in
// SelectExperts.
void LookUpExperts(const RouterConfig& config, const RouterWeights& weights, const float* logits,
                   int64_t tokens, const float* ids, int64_t stride, TopK* out, ThreadPool& pool);

// Replaces the slots of experts without computation by empty ones (id −1, weight 0). Stores the sum
// of their weights, in slot order, in weights [tokens].
void RemoveZeroExperts(const RouterConfig& config, TopK* topk, float* weights);

}  // namespace switchyard
