// Parameters of sampling the next token from a row of logits. Included by device code.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// Sampling parameters of one row, as in the engine's Sampler (engine/sampler).
struct RowSampling {
  float temperature = 0.0f;  // 0: argmax, ties to the lowest id
  float top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = -1;    // −1: all
  double uniform = 0.0;  // random number in [0, 1) that selects among the filtered tokens
};

struct SampleParams {
  const float* logits = nullptr;       // [rows, vocab]
  const RowSampling* draws = nullptr;  // [rows]
  int64_t rows = 0, vocab = 0;
  float* weights = nullptr;   // [rows, vocab] scratch
  int32_t* tokens = nullptr;  // [rows]; −1 if a logit is not finite
};

}  // namespace switchyard::kernels
