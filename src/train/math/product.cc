#include "train/math/product.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "kernels/ops.h"
#include "train/math/leaves.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

// Tiles of C that are one task: big enough that reading A and B is paid back.
constexpr int64_t kTileRows = 96, kTileColumns = 256;
// Below so many multiply-adds waking another thread costs more than it brings.
constexpr int64_t kFewOperations = 1 << 17;

// Memory of a thread that grows and is kept.
template <typename T>
T* Scratch(int64_t count) {
  static thread_local std::vector<T> memory;
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

template <typename T>
void MultiplyPlain(const Product<T>& p) {
  for (int64_t i = 0; i < p.m; ++i) {
    T* c = p.c + i * p.ldc;
    if (!p.accumulate) std::fill_n(c, p.n, T{0});
    for (int64_t q = 0; q < p.k; ++q) {
      const T a = p.a[i * p.a_row + q * p.a_col];
      const T* b = p.b + q * p.b_row;
      if (p.b_col == 1) {
        for (int64_t j = 0; j < p.n; ++j) c[j] += a * b[j];
      } else {
        for (int64_t j = 0; j < p.n; ++j) c[j] += a * b[j * p.b_col];
      }
    }
  }
}

// B stored by columns, turned over: [k, n]. Columns [j0, j1).
void TurnOver(const Product<float>& p, int64_t j0, int64_t j1, const Leaves& leaves, float* out) {
  CHECK_EQ(p.b_row, 1);
  leaves.transpose(p.b + j0 * p.b_col, p.b_col, j1 - j0, p.k, out + j0, p.n);
}

// B with its rows contiguous: as it is stored, or turned over in scratch.
const float* RowsOfB(const Product<float>& p, const Leaves& leaves, int64_t* row) {
  if (p.b_col == 1) {
    *row = p.b_row;
    return p.b;
  }
  float* out = Scratch<float>(p.n * p.k);
  TurnOver(p, 0, p.n, leaves, out);
  *row = p.n;
  return out;
}

template <typename T>
void MultiplyPart(const Product<T>& p) {
  if (p.m == 0 || p.n == 0) return;
  const Leaves* leaves = ActiveLeaves();
  if (std::is_same_v<T, double> || leaves == nullptr) {
    MultiplyPlain(p);
  } else if constexpr (std::is_same_v<T, float>) {
    ProductTask task{.a = p.a,
                     .a_row = p.a_row,
                     .a_col = p.a_col,
                     .b = nullptr,
                     .b_row = 0,
                     .c = p.c,
                     .ldc = p.ldc,
                     .m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .accumulate = p.accumulate};
    task.b = RowsOfB(p, *leaves, &task.b_row);
    leaves->multiply(task);
  }
  if (p.scale == T{1}) return;
  CHECK(!p.accumulate);
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) p.c[i * p.ldc + j] *= p.scale;
}

template <typename T>
Product<T> Part(Product<T> p, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  p.a += i0 * p.a_row;
  p.b += j0 * p.b_col;
  p.c += i0 * p.ldc + j0;
  p.m = i1 - i0;
  p.n = j1 - j0;
  return p;
}

// Turns over the B of all products that are stored by columns, shared out among the threads, and
// makes them products by rows. `room` gets the memory.
std::vector<Product<float>> TurnOverAll(std::span<const Product<float>> products,
                                        std::optional<Temporary<float>>* room, ThreadPool& pool) {
  std::vector<Product<float>> turned(products.begin(), products.end());
  const Leaves* leaves = ActiveLeaves();
  if (leaves == nullptr) return turned;
  struct Piece {
    const Product<float>* product;
    float* out;
    int64_t begin, end;
  };
  std::vector<Piece> pieces;
  int64_t count = 0;
  for (const Product<float>& p : products)
    if (p.b_col != 1 && p.m > 0) count += p.n * p.k;
  if (count == 0) return turned;
  room->emplace(count);
  float* next = (*room)->data();
  for (size_t q = 0; q < products.size(); ++q) {
    const Product<float>& p = products[q];
    if (p.b_col == 1 || p.m == 0) continue;
    for (int64_t j = 0; j < p.n; j += kTileColumns)
      pieces.push_back({&p, next, j, std::min(p.n, j + kTileColumns)});
    turned[q].b = next;
    turned[q].b_row = p.n;
    turned[q].b_col = 1;
    next += p.n * p.k;
  }
  const auto run = [&](int64_t i) {
    TurnOver(*pieces[i].product, pieces[i].begin, pieces[i].end, *leaves, pieces[i].out);
  };
  pool.Run(static_cast<int64_t>(pieces.size()), std::cref(run));
  return turned;
}

// C in tiles, as many tasks.
template <typename T>
void MultiplyTiles(std::span<const Product<T>> products, ThreadPool& pool) {
  struct Tile {
    size_t product;
    int64_t i, j;
  };
  std::vector<Tile> tiles;
  for (size_t q = 0; q < products.size(); ++q) {
    for (int64_t i = 0; i < products[q].m; i += kTileRows)
      for (int64_t j = 0; j < products[q].n; j += kTileColumns) tiles.push_back({q, i, j});
  }
  const auto run = [&](int64_t t) {
    const auto [q, i, j] = tiles[t];
    const Product<T>& p = products[q];
    MultiplyPart(Part(p, i, std::min(p.m, i + kTileRows), j, std::min(p.n, j + kTileColumns)));
  };
  pool.Run(static_cast<int64_t>(tiles.size()), std::cref(run));
}

}  // namespace

const Leaves* ActiveLeaves() {
  switch (kernels::ActiveIsa()) {
    case kernels::Isa::kReference:
      return nullptr;
    case kernels::Isa::kAvx2:
      return &avx2::kLeaves;
    case kernels::Isa::kAvx512:
      return &avx512::kLeaves;
  }
  return nullptr;
}

template <typename T>
void MultiplyHere(const Product<T>& product) {
  MultiplyPart(product);
}

template <typename T>
void Multiply(std::span<const Product<T>> products, ThreadPool& pool) {
  int64_t operations = 0;
  for (const Product<T>& p : products) operations += p.m * p.n * p.k;
  if (operations < kFewOperations || pool.num_threads() == 1) {
    for (const Product<T>& p : products) MultiplyPart(p);
  } else if constexpr (std::is_same_v<T, float>) {
    std::optional<Temporary<float>> room;
    MultiplyTiles<float>(TurnOverAll(products, &room, pool), pool);
  } else {
    MultiplyTiles<T>(products, pool);
  }
}

template <typename T>
void Project(std::span<const Projection<T>> parts, ThreadPool& pool) {
  std::vector<Product<T>> products;
  for (const Projection<T>& p : parts) {
    products.push_back({.a = p.x,
                        .a_row = p.k,
                        .b = p.w,
                        .b_row = 1,
                        .b_col = p.k,
                        .c = p.y,
                        .ldc = p.n,
                        .m = p.m,
                        .n = p.n,
                        .k = p.k});
  }
  Multiply<T>(products, pool);
}

template void MultiplyHere(const Product<float>&);
template void MultiplyHere(const Product<double>&);
template void Multiply(std::span<const Product<float>>, ThreadPool&);
template void Multiply(std::span<const Product<double>>, ThreadPool&);
template void Project(std::span<const Projection<float>>, ThreadPool&);
template void Project(std::span<const Projection<double>>, ThreadPool&);

}  // namespace switchyard::train
