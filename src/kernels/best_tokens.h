// The most probable tokens of rows of logits, for trees of drafts. Included by device code.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard::kernels {

struct BestToken {
  int32_t token = -1;
  float logit = 0.0f;
};

constexpr int32_t kMostBestTokens = 16;  // of a row, on GPUs

// A row's probability of a token is exp(logit − max) / exp_sum, where max is the row's largest
// logit, that of its first best token.
struct BestTokensParams {
  const float* logits = nullptr;  // [rows, vocab]
  int64_t rows = 0, vocab = 0;
  int32_t count = 0;             // best tokens of a row, at most kMostBestTokens
  const int32_t* ids = nullptr;  // [vocab] token of each logit; null: its index
  double* exp_sums = nullptr;    // [rows] the sum of exp(logit − max) over the row (ExpSum), or 0
  BestToken* best = nullptr;     // [rows, count] as the result of SelectBestTokens
};

// Results of BestTokensParams in host memory.
struct BestTokenRows {
  std::span<const double> exp_sums;  // [rows]
  std::span<const BestToken> best;   // [rows, count]
  int32_t count = 0;

  std::span<const BestToken> Row(int64_t row) const { return best.subspan(row * count, count); }
};

// Fills `best` with the largest logits of a row, in descending order, and returns the sum of
// exp(logit − max). Among equal logits, the lowest index is the best. The tokens are indices. If
// the row has fewer logits than `best`, tokens −1 with logit −inf follow. Logits of −inf are
// allowed, NaN is not. Returns 0 if no logit is finite.
//
// A GPU (BestTokensParams) computes the same bits. But it gives tokens −1 with logit −inf, and the
// sum 0, if any logit of the row is not finite.
double SelectBestTokens(std::span<const float> logits, std::span<BestToken> best);

}  // namespace switchyard::kernels
