// Feed-forward of small networks by tiles of rows. One thread computes all steps of a tile while
// the tile is in its L2 cache. In contrast, products over all rows, one after the other, load the
// activations of an MoE layer (k rows for each token) from memory for each product. The results
// are bitwise equal.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/parallel.h"
#include "train/layers/feed_forward.h"

namespace switchyard::train {

// Whether there are enough networks for all threads (in the backward pass a thread processes one
// network), and the gradients of those networks fit in an L2 cache.
template <typename T>
bool UsesTiles(std::span<const FeedForward<T>> networks, const ThreadPool& pool);

// Input rows [n, H] of the networks: dense, or gathered tile by tile, which avoids a round trip
// through memory.
template <typename T>
struct TileRows {
  const T* dense = nullptr;
  // If `dense` is null: writes rows [begin, begin + count) to out. Called once for each row of a
  // pass, by any of its threads.
  std::function<void(int64_t begin, int64_t count, T* out)> put = {};
};

// Like Forward and Backward of feed_forward.h, with at least one network. The state has no
// `middle`. Rows of dx are written after those of x and dout in the same tile have been read.
template <typename T>
void ForwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                  const TileRows<T>& x, FeedForwardState<T>* state, T* out, ThreadPool& pool);
template <typename T>
void BackwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                   const TileRows<T>& x, FeedForwardState<T>* state, const TileRows<T>& dout, T* dx,
                   bool accumulate, ThreadPool& pool);

}  // namespace switchyard::train
