// Cross-entropy over a chunk of rows, so that the logits of a batch are never stored. Semantics:
// train/layers/head.h.
//
// For each chunk of c rows: LinearForward computes logits [c, V] in float32; LogitStatistics; with
// a partitioned vocabulary, gather the statistics of all ranks; LogitGradient; then
// LinearInputGradient and LinearWeightGradient on dlogits.
#pragma once

#include <cstdint>

#include "train/cuda/array.h"

namespace switchyard::train::gpu {

struct LogitShape {
  int64_t rows = 0;   // c
  int64_t vocab = 0;  // V: the columns of this rank
  int64_t ld = 0;     // stride of logits and dlogits; 0: vocab
  // Global id of the first column. Targets are global ids.
  int32_t first_id = 0;
};

// Partial softmax statistics of a row over the columns of one rank.
struct LogitStatistic {
  float largest = 0, sum = 0;  // maximum logit; sum of e^(logit - largest)
  float wanted = 0;            // the target's logit, on the rank that has it; else 0
};
// targets [c], −1: the row has no loss. out [c].
void LogitStatistics(const LogitShape& shape, const float* logits, const int32_t* targets,
                     LogitStatistic* out, Stream stream);

// losses [c] (null: not computed): -log softmax(logits)[target], 0 without target. dlogits (null:
// not computed) = scale · (softmax(logits) - onehot(target)), 0 without target; may be logits if it
// is float32. `statistics` [ranks, c]: those of all ranks, joined in rank order.
void LogitGradient(const LogitShape& shape, const float* logits, const int32_t* targets,
                   const LogitStatistic* statistics, int ranks, float scale, float* losses,
                   Array dlogits, Stream stream);

// *out (+)= Σ values[i] in double.
void SumInOrder(const float* values, int64_t count, bool accumulate, double* out, Stream stream);

}  // namespace switchyard::train::gpu
