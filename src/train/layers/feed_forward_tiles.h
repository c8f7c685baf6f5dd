// Small networks by tiles of rows: all that is computed of a tile is computed by one thread while
// it lies in the second cache. The products of all rows, one after the other, bring the
// activations of an MoE layer (k rows for each token) from memory for each of them. The bits are
// the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/parallel.h"
#include "train/layers/feed_forward.h"

namespace switchyard::train {

// Whether there are networks enough for all threads, of which one has one in the backward pass, and
// their gradients fit in a second cache.
template <typename T>
bool RunsInTiles(std::span<const FeedForward<T>> networks, const ThreadPool& pool);

// Rows [n, H] that networks read: as they lie, or put together tile by tile, which saves bringing
// them to memory and back.
template <typename T>
struct TileRows {
  const T* dense = nullptr;
  // Where there is no `dense`: writes rows [begin, begin + count) to out. Called once for each row
  // of a pass, by any of its threads.
  std::function<void(int64_t begin, int64_t count, T* out)> put = {};
};

// As Forward and Backward of feed_forward.h; at least one network. The state has no `middle`. Rows
// of dx are written after those of x and dout, in the same tile, were read.
template <typename T>
void ForwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                  const TileRows<T>& x, FeedForwardState<T>* state, T* out, ThreadPool& pool);
template <typename T>
void BackwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                   const TileRows<T>& x, FeedForwardState<T>* state, const TileRows<T>& dout, T* dx,
                   bool accumulate, ThreadPool& pool);

}  // namespace switchyard::train
