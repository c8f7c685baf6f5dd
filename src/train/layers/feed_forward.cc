#include "train/layers/feed_forward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "train/layers/pointwise.h"
#include "train/math/operands.h"
#include "train/math/row_math.h"
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
  const auto adapt = [&](Linear<T> FeedForward<T>::*linear, const T* in, int64_t in_width, T* to,
                         int64_t to_width) {
    for (size_t e = 0; e < networks.size(); ++e)
      ForwardAdapter(networks[e].*linear, in + offsets[e] * in_width, offsets[e + 1] - offsets[e],
                     to + offsets[e] * to_width, pool);
  };
  adapt(&FeedForward<T>::gate, x, hidden, state->gate.data(), width);
  adapt(&FeedForward<T>::up, x, hidden, state->up.data(), width);
  SwiGlu(state->gate.data(), state->up.data(), state->middle.data(), rows * width, pool);
  if (out == nullptr) return;
  parts.clear();
  for (size_t e = 0; e < networks.size(); ++e) {
    const int64_t begin = offsets[e], m = offsets[e + 1] - begin;
    if (m == 0) continue;
    parts.push_back(
        networks[e].down.Forward(state->middle.data() + begin * width, m, out + begin * hidden));
  }
  Project<T>(parts, pool);
  adapt(&FeedForward<T>::down, state->middle.data(), width, out, hidden);
}

// Overwrites the state's gate and up with their gradients.
template <typename T>
void BackwardProducts(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                      const T* x, FeedForwardState<T>* state, const T* dout, T* dx, bool accumulate,
                      ThreadPool& pool, LaterWeights<T>* later) {
  const int64_t hidden = networks[0].gate.k, width = networks[0].gate.n;
  const int64_t rows = offsets.back();
  ScratchBuffer<T> dmiddle(rows * width);
  const T* middle = state->middle.data();
  if (later != nullptr) {  // the forward pass may have run by tiles, which leave no `middle`
    T* held = later->Hold(rows * width);
    SwiGlu(state->gate.data(), state->up.data(), held, rows * width, pool);
    middle = held;
  }
  std::vector<Product<T>> products;
  const auto add_weight = [&](const Linear<T>& linear, const T* dy, const T* in, int64_t m) {
    if (!linear.learns()) return;
    const Product<T> product = linear.ForWeight(dy, in, m);
    later != nullptr ? later->Add(product) : products.push_back(product);
  };
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
    add_weight(f.down, d, middle + at_width, m);
  });
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    BackwardAdapter<T>(f.down, dout + at_hidden, middle + at_width, m, dmiddle.data() + at_width,
                       pool, later);
  });
  SwiGluGradient(state->gate.data(), state->up.data(), dmiddle.data(), state->gate.data(),
                 state->up.data(), rows * width, pool);
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    const T* dgate = state->gate.data() + at_width;
    const T* dup = state->up.data() + at_width;
    products.push_back(f.gate.ForInput(dgate, m, dx + at_hidden, accumulate));
    add_weight(f.gate, dgate, x + at_hidden, m);
    add_weight(f.up, dup, x + at_hidden, m);
  });
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    products.push_back(f.up.ForInput(state->up.data() + at_width, m, dx + at_hidden, true));
  });
  for_each([&](const FeedForward<T>& f, int64_t m, int64_t at_hidden, int64_t at_width) {
    for (const auto& [linear, dy] :
         {std::pair{&f.gate, state->gate.data()}, std::pair{&f.up, state->up.data()}}) {
      BackwardAdapter<T>(*linear, dy + at_width, x + at_hidden, m, dx + at_hidden, pool, later);
    }
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
              ThreadPool& pool, LaterWeights<T>* later) {
  if (networks.empty()) return;
  if (later == nullptr && UsesTiles(networks, pool)) {
    BackwardTiles<T>(networks, offsets, {.dense = x}, state, {.dense = dout}, dx, accumulate, pool);
  } else {
    BackwardProducts(networks, offsets, x, state, dout, dx, accumulate, pool, later);
  }
}

template <typename T>
int64_t StateElements(std::span<const FeedForward<T>> networks, int64_t rows,
                      const ThreadPool& pool) {
  if (networks.empty()) return 0;
  return (UsesTiles(networks, pool) ? 2 : 3) * rows * networks[0].gate.n;
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_FEED_FORWARD(T)                                                             \
  template int64_t StateElements(std::span<const FeedForward<T>>, int64_t, const ThreadPool&); \
  template void Forward(std::span<const FeedForward<T>>, std::span<const int32_t>, const T*,   \
                        FeedForwardState<T>*, T*, ThreadPool&);                                \
  template void Backward(std::span<const FeedForward<T>>, std::span<const int32_t>, const T*,  \
                         FeedForwardState<T>*, const T*, T*, bool, ThreadPool&, LaterWeights<T>*);
SWITCHYARD_FEED_FORWARD(float)
SWITCHYARD_FEED_FORWARD(double)
// NOLINTEND(bugprone-macro-parentheses)

namespace {

// Rows of a tile: even, and a multiple of the register tile's six rows.
constexpr int64_t kRows = 96;
constexpr int64_t kMaxWeights = 96 * 1024;     // maximum weights of a network: 384 KB of gradients
constexpr int64_t kNetworksForEachThread = 2;  // load balance: networks have unequal row counts

// Bump allocator for the arrays of a task.
template <typename T>
class Arrays {
 public:
  explicit Arrays(int64_t count) : room_(count + kLineFloats), next_(AlignedToLine(room_.data())) {}
  T* Take(int64_t count) {
    T* taken = next_;
    next_ += count;
    return taken;
  }

 private:
  ScratchBuffer<T> room_;
  T* next_;
};

// The common shape of all networks, and their packed weights.
template <typename T>
struct Networks {
  OperandForm form;
  int64_t hidden, width;
  int64_t panels;  // elements of one packed matrix; each network has three matrices
  T* packed;

  const T* Matrix(size_t e, int i) const { return packed + (3 * e + i) * panels; }
  // Number of elements of a packed tile [kRows, d]: the maximum over its two forms, PackOperandRows
  // and PackAlongRows.
  int64_t Operand(int64_t d) const {
    const int64_t rows = kRows * InnerFloats(form, d),
                  along = InnerFloats(form, kRows) * PairStride(form, d);
    return std::max(rows, along);
  }
};

// Packs the matrices of all networks into panels: forward for W · x, backward for dy · W.
template <typename T>
Networks<T> Pack(std::span<const FeedForward<T>> all, bool forward, ScratchBuffer<T>* room,
                 ThreadPool& pool) {
  Networks<T> n{
      .form = FormOf<T>(all[0].gate.dtype), .hidden = all[0].gate.k, .width = all[0].gate.n};
  n.packed = AlignedToLine(room->data());
  n.panels = std::max(PanelsSize(InnerFloats(n.form, n.hidden), n.width),
                      PanelsSize(InnerFloats(n.form, n.width), n.hidden));
  pool.Run(3 * std::ssize(all), [&](int64_t i) {
    const FeedForward<T>& network = all[i / 3];
    const Linear<T>& linear = i % 3 == 0 ? network.gate : i % 3 == 1 ? network.up : network.down;
    T* out = n.packed + i * n.panels;
    const auto pack = forward ? PackColumns<T> : PackAlong<T>;
    pack(n.form, linear.weight->value.data(), linear.n, linear.k, out);
  });
  return n;
}

template <typename T>
int64_t PackedSize(std::span<const FeedForward<T>> all) {  // size for one pass, forward or backward
  const int64_t hidden = all[0].gate.k, width = all[0].gate.n;
  return 3 * std::ssize(all) * std::max(PanelsSize(hidden, width), PanelsSize(width, hidden)) +
         kLineFloats;
}

// Returns rows [row, row + m) of the input: in place if the input is dense, otherwise gathered into
// `room`.
template <typename T>
const T* RowsAt(const TileRows<T>& rows, int64_t row, int64_t m, int64_t width, T* room) {
  if (rows.dense != nullptr) return rows.dense + row * width;
  rows.put(row, m, room);
  return room;
}

// Arguments of a tile in the backward pass, and its workspace.
template <typename T>
struct Tile {
  const TileRows<T>&x, &dout;  // [., H]
  const T *gate, *up;          // [m, I]
  T* dx;                       // [m, H]
  int64_t row, m;
};
template <typename T>
struct Scratch {
  T* rows;                                  // [kRows, H]
  T *middle, *dmiddle, *dgate, *dup;        // [kRows, I]
  T *hidden, *width, *along, *along_width;  // packed operands
};

template <typename T>
void BackwardTile(const Networks<T>& n, const FeedForward<T>& network, size_t e, const Tile<T>& t,
                  bool accumulate, const Scratch<T>& s) {
  const auto [form, h, w, panels, packed] = n;
  const int64_t m = t.m;
  const T* dout = RowsAt(t.dout, t.row, m, h, s.rows);
  MultiplyPanels(form, PackedRows(form, dout, m, h, s.hidden), n.Matrix(e, 2), s.dmiddle, m, w, h,
                 false);
  SwiGluGradientSerial(t.gate, t.up, s.dmiddle, s.dgate, s.dup, s.middle, m * w);
  AccumulateAlongRows(form, PackedAlong(form, dout, m, h, s.along),
                      PackedAlong(form, s.middle, m, w, s.along_width),
                      network.down.weight->gradient.data(), m, h, w);
  const T* x = PackedAlong(form, RowsAt(t.x, t.row, m, h, s.rows), m, h, s.along);
  MultiplyPanels(form, PackedRows(form, s.dgate, m, w, s.width), n.Matrix(e, 0), t.dx, m, h, w,
                 accumulate);
  MultiplyPanels(form, PackedRows(form, s.dup, m, w, s.width), n.Matrix(e, 1), t.dx, m, h, w, true);
  AccumulateAlongRows(form, PackedAlong(form, s.dgate, m, w, s.along_width), x,
                      network.gate.weight->gradient.data(), m, w, h);
  AccumulateAlongRows(form, PackedAlong(form, s.dup, m, w, s.along_width), x,
                      network.up.weight->gradient.data(), m, w, h);
}

}  // namespace

template <typename T>
bool UsesTiles(std::span<const FeedForward<T>> networks, const ThreadPool& pool) {
  const int64_t weights = 3 * networks[0].gate.n * networks[0].gate.k;
  const int threads = pool.num_threads();
  return !networks[0].gate.frozen && weights <= kMaxWeights &&
         (threads == 1 || std::ssize(networks) >= kNetworksForEachThread * threads);
}

template <typename T>
void ForwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                  const TileRows<T>& x, FeedForwardState<T>* state, T* out, ThreadPool& pool) {
  ScratchBuffer<T> room(PackedSize(networks));
  const Networks<T> n = Pack(networks, true, &room, pool);
  const int64_t h = n.hidden, w = n.width;
  for (auto* v : {&state->gate, &state->up}) v->resize(offsets.back() * w);
  struct Place {
    size_t e;
    int64_t row, m;
  };
  std::vector<Place> tiles;
  for (size_t e = 0; e < networks.size(); ++e) {
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kRows)
      tiles.push_back({e, row, std::min<int64_t>(kRows, offsets[e + 1] - row)});
  }
  pool.Run(std::ssize(tiles), [&](int64_t i) {
    const auto [e, row, m] = tiles[i];
    Arrays<T> arrays(kRows * h + n.Operand(h) + kRows * w + n.Operand(w));
    const T* rows = RowsAt(x, row, m, h, arrays.Take(kRows * h));
    T* middle = arrays.Take(kRows * w);
    T *gate = state->gate.data() + row * w, *up = state->up.data() + row * w;
    const T* in = PackedRows(n.form, rows, m, h, arrays.Take(n.Operand(h)));
    MultiplyPanels(n.form, in, n.Matrix(e, 0), gate, m, w, h, false);
    MultiplyPanels(n.form, in, n.Matrix(e, 1), up, m, w, h, false);
    if (out == nullptr) return;
    SwiGluSerial(gate, up, middle, m * w);
    const T* middles = PackedRows(n.form, middle, m, w, arrays.Take(n.Operand(w)));
    MultiplyPanels(n.form, middles, n.Matrix(e, 2), out + row * h, m, h, w, false);
  });
}

template <typename T>
void BackwardTiles(std::span<const FeedForward<T>> networks, std::span<const int32_t> offsets,
                   const TileRows<T>& x, FeedForwardState<T>* state, const TileRows<T>& dout, T* dx,
                   bool accumulate, ThreadPool& pool) {
  ScratchBuffer<T> room(PackedSize(networks));
  const Networks<T> n = Pack(networks, false, &room, pool);
  const int64_t h = n.hidden, w = n.width;
  // A network is one task, because its weight gradients are accumulated tile by tile.
  pool.Run(std::ssize(networks), [&](int64_t e) {
    if (offsets[e] == offsets[e + 1]) return;
    Arrays<T> arrays(kRows * h + 4 * kRows * w + 2 * (n.Operand(h) + n.Operand(w)));
    const Scratch<T> scratch{.rows = arrays.Take(kRows * h),
                             .middle = arrays.Take(kRows * w),
                             .dmiddle = arrays.Take(kRows * w),
                             .dgate = arrays.Take(kRows * w),
                             .dup = arrays.Take(kRows * w),
                             .hidden = arrays.Take(n.Operand(h)),
                             .width = arrays.Take(n.Operand(w)),
                             .along = arrays.Take(n.Operand(h)),
                             .along_width = arrays.Take(n.Operand(w))};
    for (int64_t row = offsets[e]; row < offsets[e + 1]; row += kRows) {
      const Tile<T> tile{.x = x,
                         .dout = dout,
                         .gate = state->gate.data() + row * w,
                         .up = state->up.data() + row * w,
                         .dx = dx + row * h,
                         .row = row,
                         .m = std::min<int64_t>(kRows, offsets[e + 1] - row)};
      BackwardTile(n, networks[e], static_cast<size_t>(e), tile, accumulate, scratch);
    }
  });
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define SWITCHYARD_FEED_FORWARD_TILES(T)                                                        \
  template bool UsesTiles(std::span<const FeedForward<T>>, const ThreadPool&);                  \
  template void ForwardTiles(std::span<const FeedForward<T>>, std::span<const int32_t>,         \
                             const TileRows<T>&, FeedForwardState<T>*, T*, ThreadPool&);        \
  template void BackwardTiles(std::span<const FeedForward<T>>, std::span<const int32_t>,        \
                              const TileRows<T>&, FeedForwardState<T>*, const TileRows<T>&, T*, \
                              bool, ThreadPool&);
SWITCHYARD_FEED_FORWARD_TILES(float)
SWITCHYARD_FEED_FORWARD_TILES(double)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace switchyard::train
