#include "train/layers/feed_forward.h"

#include "train/layers/feed_forward_tiles.h"
#include "train/layers/pointwise.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

// Each product is one parallel loop over all networks, distributed over the threads.
template <typename T>
void ForwardProducts(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                     const T* x, FeedForwardState<T>* state, T* out, ThreadPool& pool) {
  const int64_t hidden = networks[0].gate.k, width = networks[0].gate.n;
  const int64_t rows = offsets.back();
  for (auto* v : {&state->gate, &state->up, &state->middle}) v->resize(rows * width);
  std::vector<Projection<T>> parts;
  for (size_t e = 0; e < networks.size(); ++e) {
    const int64_t begin = offsets[e], m = offsets[e + 1] - begin;
    if (m == 0) continue;
    const T* in = x + begin * hidden;
    parts.push_back(networks[e].gate.Forward(in, m, state->gate.data() + begin * width));
    parts.push_back(networks[e].up.Forward(in, m, state->up.data() + begin * width));
  }
  Project<T>(parts, pool);
  SwiGlu(state->gate.data(), state->up.data(), state->middle.data(), rows * width, pool);
  parts.clear();
  for (size_t e = 0; e < networks.size(); ++e) {
    const int64_t begin = offsets[e], m = offsets[e + 1] - begin;
    if (m == 0) continue;
    parts.push_back(
        networks[e].down.Forward(state->middle.data() + begin * width, m, out + begin * hidden));
  }
  Project<T>(parts, pool);
}

// Overwrites the state's gate and up with their gradients.
template <typename T>
void BackwardProducts(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                      const T* x, FeedForwardState<T>* state, const T* dout, T* dx, bool accumulate,
                      ThreadPool& pool) {
  const int64_t hidden = networks[0].gate.k, width = networks[0].gate.n;
  const int64_t rows = offsets.back();
  ScratchBuffer<T> dmiddle(rows * width);
  std::vector<Product<T>> products;
  const auto for_each = [&](auto body) {
    products.clear();
    for (size_t e = 0; e < networks.size(); ++e) {
      const int64_t begin = offsets[e], m = offsets[e + 1] - begin;
      if (m > 0) body(networks[e], m, begin * hidden, begin * width);
    }
    Multiply<T>(products, pool);
  };
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    const T* d = dout + at_hidden;
    products.push_back(f.down.ForInput(d, m, dmiddle.data() + at_width, false));
    products.push_back(f.down.ForWeight(d, state->middle.data() + at_width, m));
  });
  SwiGluGradient(state->gate.data(), state->up.data(), dmiddle.data(), state->gate.data(),
                 state->up.data(), rows * width, pool);
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    const T* dgate = state->gate.data() + at_width;
    const T* dup = state->up.data() + at_width;
    products.push_back(f.gate.ForInput(dgate, m, dx + at_hidden, accumulate));
    products.push_back(f.gate.ForWeight(dgate, x + at_hidden, m));
    products.push_back(f.up.ForWeight(dup, x + at_hidden, m));
  });
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    products.push_back(f.up.ForInput(state->up.data() + at_width, m, dx + at_hidden, true));
  });
}

}  // namespace

template <typename T>
void Forward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets, const T* x,
             FeedForwardState<T>* state, T* out, ThreadPool& pool) {
  if (networks.empty()) return;
  if (UsesTiles(networks, pool)) {
    ForwardTiles<T>(networks, offsets, {.dense = x}, state, out, pool);
  } else {
    ForwardProducts(networks, offsets, x, state, out, pool);
  }
}

template <typename T>
void Backward(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
              const T* x, FeedForwardState<T>* state, const T* dout, T* dx, bool accumulate,
              ThreadPool& pool) {
  if (networks.empty()) return;
  if (UsesTiles(networks, pool)) {
    BackwardTiles<T>(networks, offsets, {.dense = x}, state, {.dense = dout}, dx, accumulate, pool);
  } else {
    BackwardProducts(networks, offsets, x, state, dout, dx, accumulate, pool);
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_FEED_FORWARD(T)                                                            \
  template void Forward(std::span<const FeedForward<T>>, std::span<const int32_t>, const T*,  \
                        FeedForwardState<T>*, T*, ThreadPool&);                               \
  template void Backward(std::span<const FeedForward<T>>, std::span<const int32_t>, const T*, \
                         FeedForwardState<T>*, const T*, T*, bool, ThreadPool&);
SWITCHYARD_FEED_FORWARD(float)
SWITCHYARD_FEED_FORWARD(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
