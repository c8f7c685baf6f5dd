// Drawing the next token from a row of logits. Included by device code.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// What one row's token is drawn by, as the engine's Sampler has it (engine/sampler).
struct RowDraw {
  float temperature = 0.0f;  // 0: the largest logit, the lowest id among equals
  float top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = -1;    // −1: all
  double uniform = 0.0;  // in [0, 1): where the draw falls among what the filters keep
};

struct DrawParams {
  const float* logits = nullptr;   // [rows, vocab]
  const RowDraw* draws = nullptr;  // [rows]
  int64_t rows = 0, vocab = 0;
  float* weights = nullptr;   // [rows, vocab] scratch
  int32_t* tokens = nullptr;  // [rows]; −1 where a logit is not finite
};

}  // namespace switchyard::kernels
