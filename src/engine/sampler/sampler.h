// Samples the next token from a row of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sampler/nucleus.h"
#include "engine/sampler/penalties.h"
#include "kernels/sample_params.h"

namespace switchyard {

// A pure function of logits, request and the tokens so far: the same seed gives the same tokens on
// every rank, whatever else is in the batch. Owns vocabulary-sized scratch, so sampling allocates
// nothing. Used by the rank's thread only.
class Sampler {
 public:
  static constexpr float kGreedyBelow = 1e-6f;  // temperature below which sampling is greedy

  Sampler(int64_t vocab_size, std::vector<int32_t> eos_token_ids);

  // `logits` [vocab], all finite. `mask`: one bit for each token that may be sampled; empty: all
  // may. Returns nullopt if penalties, biases and the mask leave no token.
  //
  // Greedy (temperature 0, or too small to divide by) takes the largest logit, the lowest id among
  // equals. Otherwise: softmax(logits / temperature), the filters (nucleus.h), and one random
  // number keyed by `seed` and the number of tokens so far.
  std::optional<int32_t> Sample(std::span<const float> logits, const SamplingParams& params,
                                std::span<const int32_t> prompt, std::span<const int32_t> output,
                                uint64_t seed, std::span<const uint32_t> mask = {});
  // Applies the request's penalties, biases and forbidden tokens (−inf) to a row of logits.
  void Adjust(const SamplingParams& params, std::span<const int32_t> prompt,
              std::span<const int32_t> output, std::span<float> logits);
  // Samples without penalties and biases. `row`: the parameters in the form that devices receive.
  std::optional<int32_t> SampleRow(std::span<const float> logits, const kernels::RowSampling& row,
                                   std::span<const uint32_t> mask = {});
  static kernels::RowSampling RowSamplingOf(const SamplingParams& params, double uniform);

 private:
  // Samples an index of `logits` [at most vocab].
  std::optional<int32_t> SampleFrom(std::span<const float> logits, const kernels::RowSampling& row);
  static int32_t SampleWeighted(std::span<const float> weights, const Cutoff& cutoff,
                                double uniform);

  Penalties penalties_;
  NucleusFilter filter_;
  std::vector<float> adjusted_;  // [vocab]
  std::vector<float> weights_;   // [vocab]
  // The allowed tokens of a row and their logits, in the order of ids.
  std::vector<int32_t> allowed_ids_;
  std::vector<float> allowed_;
};

}  // namespace switchyard
