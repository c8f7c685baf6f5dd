// Residual streams (manifold-constrained hyper-connections): the residual of a token is several
// rows. Xie et al., "mHC: Manifold-Constrained Hyper-Connections"
// (https://arxiv.org/abs/2512.24880).
#pragma once

#include <cstdint>

#include "core/parallel.h"

namespace switchyard::kernels {

constexpr int64_t kMaxStreams = 16;

// Elements of a row of logits, for n streams: pre, post, and the matrix by rows.
constexpr int64_t StreamLogits(int64_t n) { return n * (2 + n); }
// Elements of a row of StreamsParams::mix.
constexpr int64_t StreamMix(int64_t n) { return n * (1 + n); }

// y[t] = Σ_i pre_i · x[t, i]. With r = 1 / sqrt(squares / (n · width) + norm_eps):
//   pre = sigmoid(r · logit · scale[0] + base) + eps
//   post = 2 · sigmoid(r · logit · scale[1] + base)
//   matrix = Sinkhorn(softmax(r · logit · scale[2] + base, by rows) + eps): columns, and then
//   iterations − 1 times rows and columns, are divided by their sum + eps
struct CollapseStreamsParams {
  const float* x = nullptr;  // [m, n, width]
  int64_t m = 0, n = 0, width = 0;
  const float* logits = nullptr;   // [m, StreamLogits(n)], or [m, n] if `mix` is null
  const float* squares = nullptr;  // [m] Σ x[t]²
  const float* base = nullptr;     // of a row of logits
  const float* scale = nullptr;    // [3], or [1] if `mix` is null
  int iterations = 0;
  float eps = 1e-6f, norm_eps = 1e-6f;
  float* mix = nullptr;  // [m, StreamMix(n)]: post, then the matrix; null: only y is computed
  float* y = nullptr;    // [m, width]
};
void CollapseStreams(const CollapseStreamsParams& p, ThreadPool& pool);

// x[t, k] = post_k · branch[t] + Σ_j matrix[j, k] · x[t, j]
struct ExpandStreamsParams {
  float* x = nullptr;             // [m, n, width]
  const float* mix = nullptr;     // the result of CollapseStreams for the same rows
  const float* branch = nullptr;  // [m, width]
  int64_t m = 0, n = 0, width = 0;
};
void ExpandStreams(const ExpandStreamsParams& p, ThreadPool& pool);

// Made by a device, for its thread.
class StreamOps {
 public:
  virtual ~StreamOps() = default;
  virtual void Collapse(const CollapseStreamsParams& p) = 0;
  virtual void Expand(const ExpandStreamsParams& p) = 0;
};

}  // namespace switchyard::kernels
