// SwiGLU feed-forward (gate, up, down): dense layers, shared experts, batched routed experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/layers/linear.h"

namespace switchyard::train {

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
// rows are allowed. Writes out.
template <typename T>
void Forward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets, const T* x,
             FeedForwardState<T>* state, T* out, ThreadPool& pool);

// Computes dx: adds to dx if `accumulate`, else overwrites it. Adds to the weight gradients, in row
// order. The state is invalid afterwards.
template <typename T>
void Backward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
              const T* x, FeedForwardState<T>* state, const T* dout, T* dx, bool accumulate,
              ThreadPool& pool);

}  // namespace switchyard::train
