// Gated feed-forward networks, and the tiles of rows in which they are computed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "train/layers/linear.h"

namespace switchyard::train {

// SwiGLU feed-forward (gate, up, down): dense layers, shared experts, batched routed experts.

template <typename T>
struct FeedForward {
  Linear<T> gate, up, down;

  // Partitions the intermediate dimension over `ranks`. Each rank then computes partial sums of the
  // output.
  static FeedForward Make(ParameterSet<T>& set, const std::string& gate, const std::string& up,
                          const std::string& down, int64_t hidden, int64_t intermediate,
                          bool expert = false, const TensorGroup& ranks = TensorGroup()) {
    const Cut rows = Cut::Outputs(ranks, intermediate);
    const Cut columns = Cut::Inputs(ranks, intermediate);
    return {Linear<T>::Make(set, gate, intermediate, hidden, expert, rows),
            Linear<T>::Make(set, up, intermediate, hidden, expert, rows),
            Linear<T>::Make(set, down, hidden, intermediate, expert, columns)};
  }
};

// Rows of all networks, grouped by network.
template <typename T>
struct FeedForwardState {
  std::vector<T> gate, up;  // [rows, I]
  std::vector<T> middle;    // [rows, I]; empty if it is recomputed from gate and up
};

// Rows [offsets[e], offsets[e + 1]) of x and out, [rows, H], belong to network e. Networks without
// rows are allowed. Writes out. If `out` is null, only fills the state.
template <typename T>
void Forward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets, const T* x,
             FeedForwardState<T>* state, T* out, ThreadPool& pool);

// Elements of the state of Forward for this number of rows.
template <typename T>
int64_t StateElements(std::span<const FeedForward<T>> networks, int64_t rows,
                      const ThreadPool& pool);

// Computes dx: adds to dx if `accumulate`, else overwrites it. Adds to the weight gradients, in row
// order; with `later` only when it runs. Then x, dout and the state must stay as they are, and
// `later` holds [rows, I] more elements. Without `later`, the state is invalid afterwards.
template <typename T>
void Backward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
              const T* x, FeedForwardState<T>* state, const T* dout, T* dx, bool accumulate,
              ThreadPool& pool, LaterWeights<T>* later = nullptr);

// Feed-forward of small networks by tiles of rows. One thread computes all steps of a tile while
// the tile is in its L2 cache. Without tiles, each product reads all rows, so the activations of an
// MoE layer (k rows per token) are loaded from memory each time. The results are bitwise equal to
// those without tiles.

// Whether tiles are faster: there are enough networks for all threads, and the gradients of one
// network fit in an L2 cache. Never with LoRA adapters, which tiles do not compute. In the backward
// pass, a thread processes one network at a time.
template <typename T>
bool UsesTiles(std::span<const FeedForward<T>> networks, const ThreadPool& pool);

// Input rows [n, H] of the networks: dense, or gathered tile by tile. Gathering by tile avoids
// writing all rows to memory and reading them again.
template <typename T>
struct TileRows {
  const T* dense = nullptr;
  // Used if `dense` is null: writes rows [begin, begin + count) to `out`. Any thread of the pass
  // may call it. Each row is requested once per pass.
  std::function<void(int64_t begin, int64_t count, T* out)> put = {};
};

// Like Forward and Backward of feed_forward.h, with at least one network. The state has no
// `middle`. Within a tile, rows of dx are written after all rows of x and dout have been read, so
// dx may alias them.
template <typename T>
void ForwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                  const TileRows<T>& x, FeedForwardState<T>* state, T* out, ThreadPool& pool);
template <typename T>
void BackwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                   const TileRows<T>& x, FeedForwardState<T>* state, const TileRows<T>& dout, T* dx,
                   bool accumulate, ThreadPool& pool);

}  // namespace switchyard::train
