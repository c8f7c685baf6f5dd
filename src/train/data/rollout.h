// Rollouts as training documents, and the experts that their tokens were routed to.
//
// Routing replay (Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and
// Inference Routers", arXiv:2510.11370): the trainer routes each token to the experts of the
// rollout. Then the probabilities of both differ by rounding and by newer weights, but not by
// experts that a rounding error has exchanged.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"

namespace switchyard::train {

// Parts of a document that is a JSON object.

// The tokens of a prompt and of the output that a server generated.
struct RolloutTokens {
  std::vector<int32_t> prompt, output;
  std::vector<float> logprobs;  // [output] of the server, NaN for null; empty: not in the document
};

// Returns the rollout of a document with "output_ids", else nothing. The document is a response of
// POST /generate as it was sent: output_ids, and in meta_info prompt_token_ids and, optionally,
// output_token_logprobs (lists of log-probability, id and text). "input_ids", the field of the
// request, may be there instead of prompt_token_ids. Throws kInvalid, naming `where` and the field:
// wrong types, no prompt, an empty output, different prompts, log-probabilities of other ids.
std::optional<RolloutTokens> ReadRollout(const nlohmann::ordered_json& json,
                                         const std::string& where);

// The field "routed_experts" of a document, or of its meta_info.
struct GivenExperts {
  std::vector<int32_t> ids;  // [rows, layers, top_k], decoded from base64
  // Index of the token of the first row: "routed_experts_start_len", a field of the request, if the
  // document has it.
  int64_t start = 0;
};

// Returns nothing for a document without the field. Throws kInvalid for wrong types, a field in
// both places, text that is not base64, and bytes that are not int32.
std::optional<GivenExperts> ReadGivenExperts(const nlohmann::ordered_json& json,
                                             const std::string& where);

// The properties of a model that its documents have to match.
struct ModelShape {
  int64_t vocab_size = 0;        // 0: any id
  std::vector<bool> moe_layers;  // [layers] whether a layer has experts; MTP modules not included
  int num_experts = 0, top_k = 0;

  static ModelShape Of(const ModelConfig& config);
};

// The experts of a document's tokens, [tokens, layers, top_k]. The last token may lack its row, as
// in a server's response, because it never passed through the model. Tokens before `start` and this
// one have −1. Throws kInvalid, naming `where` and, except for a wrong size, token and layer:
// another number of rows, layers or experts per token, an expert out of range or twice in a token,
// an expert in a layer without experts.
std::vector<int32_t> ExpertsOfTokens(const GivenExperts& given, int64_t tokens,
                                     const ModelShape& shape, const std::string& where);

}  // namespace switchyard::train
