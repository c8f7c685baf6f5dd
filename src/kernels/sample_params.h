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
  const float* logits = nullptr;          // [rows, vocab]
  const RowSampling* sampling = nullptr;  // [rows]
  int64_t rows = 0, vocab = 0;
  // Masks with one bit for each token, bit i % 32 of word i / 32. Only tokens whose bit is set can
  // be sampled. Each mask has at least one such token.
  const uint32_t* masks = nullptr;     // [masks, (vocab + 31) / 32]
  const int32_t* mask_rows = nullptr;  // [rows] index of the row's mask, −1: none; null: no masks
  float* weights = nullptr;            // [rows, vocab] scratch
  const int32_t* ids = nullptr;        // [vocab] token of each logit; null: its index
  int32_t* tokens = nullptr;           // [rows]; −1 if a logit is not finite
};

}  // namespace switchyard::kernels
