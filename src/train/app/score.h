// Evaluates a model on held-out text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "train/data/encode.h"

namespace switchyard::train {

struct ScoreOptions {
  std::filesystem::path model;      // directory of a checkpoint, or of an exported model
  std::filesystem::path tokenizer;  // empty: directory of the model
  std::vector<std::filesystem::path> data;
  DocumentEncoder::ChatLoss chat_loss = DocumentEncoder::ChatLoss::kAssistant;
  int64_t length = 512;        // tokens of a row; documents that fit in a row are not split
  int64_t rows_per_pass = 16;  // rows per forward pass
  int threads = 1;
  bool routing_replay = true;    // false: tokens with given experts select their own, too
  std::filesystem::path tokens;  // file of the values of each token; empty: none
};

// Runs the model once over all of the data, on one rank. Returns an object of
//   documents, tokens, positions       counts over the data; positions: number of target tokens
//   loss, accuracy                     over the positions: mean cross-entropy, and the fraction at
//                                      which the most likely token is the target
//   mtp_positions, mtp_agreement       positions with a draft of the first MTP module, and the
//                                      fraction at which the draft equals the model's own choice
//                                      (the module reads the data's tokens); only with MTP modules
//   mtp_agreement_anywhere             the same fraction over all tokens, not only targets
//   balancedness, balancedness_worst   mean over MoE layers of mean load over largest load, and the
//                                      minimum over layers; MTP modules not included
//   dead_experts                       number of experts that received no token
//   layers                             of each MoE layer: layer, balancedness, dead_experts, loads
//   routing_replay                     only if documents give experts: selections (their tokens,
//                                      summed over the MoE layers), and agreement, the fraction for
//                                      which the router would have selected the same
//   rollout_logprobs                   only if documents have log-probabilities: positions, and
//                                      mean and maximum of the absolute difference
// Writes options.tokens with one JSON object per sequence: document ("file:line"), begin (its first
// token in the document), token_ids [n], logprobs [n] of the next token (null: no target), and
// routed_experts, base64 of int32 [n, layers, top_k], as in a response of /generate.
// Throws Error: errors of reading model, tokenizer and data; kResource for options.tokens.
nlohmann::ordered_json ScoreModel(const ScoreOptions& options);

}  // namespace switchyard::train
