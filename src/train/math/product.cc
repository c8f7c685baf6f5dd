#include "train/math/product.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/check.h"
#include "kernels/ops.h"
#include "train/math/bf16_product.h"
#include "train/math/kernel_table.h"
#include "train/math/workspace.h"

namespace switchyard::train {
namespace {

// Tile of C of one task: large enough to amortize the reads of A and B.
constexpr int64_t kTileRows = 96, kTileColumns = 256;
// With fewer multiply-adds, waking another thread costs more than it saves.
constexpr int64_t kMinParallelOperations = 1 << 17;
// In floats; addresses at multiples of this stride map to few cache sets.
constexpr int64_t kConflictStride = 128;
struct TileAt {
  size_t product;
  int64_t i, j;
};

// Thread-local buffer that grows and is reused.
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

// B with contiguous rows: in place, or transposed into the scratch buffer.
const float* RowsOfB(const Product<float>& p, const KernelTable& kernels, int64_t* row) {
  if (p.b_col == 1) {
    *row = p.b_row;
    return p.b;
  }
  CHECK_EQ(p.b_row, 1);
  float* out = Scratch<float>(p.n * p.k);
  kernels.transpose(p.b, p.b_col, p.n, p.k, out, p.n);
  *row = p.n;
  return out;
}

template <typename T>
void ScaleResult(const Product<T>& p) {
  if (p.scale == T{1}) return;
  CHECK(!p.accumulate);
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) p.c[i * p.ldc + j] *= p.scale;
}

// Products of operands rounded to bfloat16 flush subnormals to zero. So the results have the same
// bits as those of vdpbf16ps.
template <typename T>
bool FlushesSubnormals(const Product<T>& p) {
  return std::is_same_v<T, float> && p.dtype == ProductDtype::kBFloat16;
}

template <typename T>
void MultiplyPart(const Product<T>& p) {
  if (p.m == 0 || p.n == 0) return;
  const KernelTable* kernels = ActiveKernels();
  const FlushSubnormals flush(FlushesSubnormals(p));
  if (std::is_same_v<T, double> || kernels == nullptr) {
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
    task.b = RowsOfB(p, *kernels, &task.b_row);
    kernels->multiply(task);
  }
  ScaleResult(p);
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

// B in consecutive panels of kPanel columns: [panels][k][kPanel], the last one zero-padded. A tile
// of C then reads contiguous memory, whatever the strides of B. If B has contiguous rows and more
// rows than C, the copy costs more than it saves. Then B is used in place.
struct Operand {
  float* panels = nullptr;  // null: B is used in place

  const float* At(const Product<float>& p, int64_t j) const {
    return panels == nullptr ? p.b + j : panels + j * p.k;
  }
  int64_t Row(const Product<float>& p) const { return panels == nullptr ? p.b_row : kPanel; }
};

bool PacksPanelsOfB(const Product<float>& p) {
  return p.m > 0 && p.n > 0 && (p.b_col != 1 || p.m >= p.k);
}

// Packs columns [j, j + kPanel) of B.
void PackPanel(const Product<float>& p, int64_t j, const KernelTable& kernels, float* out) {
  const int64_t n = std::min(kPanel, p.n - j);
  if (p.b_col == 1) {
    kernels.pack(p.b + j, p.b_row, p.k, n, out);
  } else {
    CHECK_EQ(p.b_row, 1);
    if (n < kPanel) std::fill_n(out, p.k * kPanel, 0.0f);
    kernels.transpose(p.b + j * p.b_col, p.b_col, n, p.k, out, kPanel);
  }
}

// Packs the operands of all products, once for all rows; `room` owns the memory.
template <typename Run>
std::vector<Operand> PackAll(std::span<const Product<float>> products, const KernelTable& kernels,
                             std::optional<ScratchBuffer<float>>* room, const Run& run) {
  const auto size = [](const Product<float>& p) {
    return (p.n + kPanel - 1) / kPanel * kPanel * p.k;
  };
  int64_t count = 0;
  for (const Product<float>& p : products)
    if (PacksPanelsOfB(p)) count += size(p);
  std::vector<Operand> operands(products.size());
  if (count == 0) return operands;
  room->emplace(count + kLineFloats);
  float* next = AlignedToLine((*room)->data());
  struct Piece {
    const Product<float>* product;
    float* out;
    int64_t j;
  };
  std::vector<Piece> pieces;
  for (size_t q = 0; q < products.size(); ++q) {
    const Product<float>& p = products[q];
    if (!PacksPanelsOfB(p)) continue;
    operands[q].panels = next;
    for (int64_t j = 0; j < p.n; j += kPanel) pieces.push_back({&p, next + j * p.k, j});
    next += size(p);
  }
  run(static_cast<int64_t>(pieces.size()),
      [&](int64_t i) { PackPanel(*pieces[i].product, pieces[i].j, kernels, pieces[i].out); });
  return operands;
}

// Whether the rows of a tile of A are packed. A transposed A is read with stride a_col. A multiple
// of kConflictStride would map these elements to few cache sets.
bool PacksRowsOfA(const Product<float>& p) {
  return p.a_row == 1 && p.a_col % kConflictStride == 0;
}

// A tile of C: rows [i, i + m), columns [j, j + n), j a multiple of kPanel.
void MultiplyTile(const Product<float>& p, const Operand& b, int64_t i, int64_t m, int64_t j,
                  int64_t n, const KernelTable& kernels) {
  ProductTask task{.a = p.a + i * p.a_row,
                   .a_row = p.a_row,
                   .a_col = p.a_col,
                   .b = nullptr,
                   .b_row = b.Row(p),
                   .c = nullptr,
                   .ldc = p.ldc,
                   .m = m,
                   .n = 0,
                   .k = p.k,
                   .accumulate = p.accumulate};
  if (PacksRowsOfA(p)) {
    float* packed = AlignedToLine(Scratch<float>(p.k * kPanel + kLineFloats));
    kernels.pack(task.a, p.a_col, p.k, m, packed);
    task.a = packed;
    task.a_col = kPanel;
  }
  const FlushSubnormals flush(FlushesSubnormals(p));
  for (int64_t column = j; column < j + n; column += kPanel) {
    task.b = b.At(p, column);
    task.c = p.c + i * p.ldc + column;
    task.n = std::min(kPanel, j + n - column);
    kernels.multiply(task);
  }
  ScaleResult(Part(p, i, i + m, j, j + n));
}

// Number of rows of a tile of C. It is half of kTileRows if the rows of A are packed, so that the
// packed rows fit in a panel. It is also half if there are few tiles per thread (`few`).
int64_t TileRows(const Product<float>& p, bool few) {
  return few || PacksRowsOfA(p) ? kTileRows / 2 : kTileRows;
}

void MultiplyFloat(std::span<const Product<float>> products, const KernelTable& kernels,
                   int threads, ThreadPool& pool) {
  const auto run = [&](int64_t n, const std::function<void(int64_t)>& body) {
    if (threads > 1) return pool.Run(n, body);
    for (int64_t i = 0; i < n; ++i) body(i);
  };
  std::optional<ScratchBuffer<float>> room;
  const std::vector<Operand> operands = PackAll(products, kernels, &room, run);
  int64_t area = 0;
  for (const Product<float>& p : products) area += p.m * p.n;
  const bool few = area < 8 * threads * kTileRows * kTileColumns;
  std::vector<TileAt> tiles;
  for (size_t q = 0; q < products.size(); ++q) {
    const int64_t rows = TileRows(products[q], few);
    for (int64_t i = 0; i < products[q].m; i += rows)
      for (int64_t j = 0; j < products[q].n; j += kTileColumns) tiles.push_back({q, i, j});
  }
  run(static_cast<int64_t>(tiles.size()), [&](int64_t t) {
    const auto [q, i, j] = tiles[t];
    const Product<float>& p = products[q];
    const int64_t m = std::min(TileRows(p, few), p.m - i);
    MultiplyTile(p, operands[q], i, m, j, std::min(kTileColumns, p.n - j), kernels);
  });
}

// Splits C into tiles, one task each.
template <typename T>
void MultiplyTiles(std::span<const Product<T>> products, ThreadPool& pool) {
  std::vector<TileAt> tiles;
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

const KernelTable* ActiveKernels() {
  switch (kernels::ActiveIsa()) {
    case kernels::Isa::kReference:
      return nullptr;
    case kernels::Isa::kAvx2:
      return &avx2::kKernels;
    case kernels::Isa::kAvx512:
    case kernels::Isa::kAmx:
    case kernels::Isa::kAmxEmulated:
      return &avx512::kKernels;
  }
  return nullptr;
}

template <typename T>
void MultiplySerial(const Product<T>& product) {
  CHECK(product.dtype == ProductDtype::kFloat32);
  MultiplyPart(product);
}

template <typename T>
void Multiply(std::span<const Product<T>> products, ThreadPool& pool) {
  int64_t operations = 0;
  for (const Product<T>& p : products) {
    CHECK(p.dtype != ProductDtype::kFp8);
    operations += p.m * p.n * p.k;
  }
  const int threads = operations < kMinParallelOperations ? 1 : pool.num_threads();
  std::optional<RoundedOperands> rounded;
  if constexpr (std::is_same_v<T, float>) {
    if (!products.empty() && products[0].dtype == ProductDtype::kBFloat16) {
      if (const PairKernels* kernels = ActivePairKernels())
        return MultiplyPairs(products, *kernels, threads, pool);
      products = rounded.emplace(products).products();
    }
  }
  if constexpr (std::is_same_v<T, float>) {
    if (const KernelTable* kernels = ActiveKernels())
      return MultiplyFloat(products, *kernels, threads, pool);
  }
  if (threads == 1) {
    for (const Product<T>& p : products) MultiplyPart(p);
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
                        .k = p.k,
                        .dtype = p.dtype});
  }
  Multiply<T>(products, pool);
}

template void MultiplySerial(const Product<float>&);
template void MultiplySerial(const Product<double>&);
template void Multiply(std::span<const Product<float>>, ThreadPool&);
template void Multiply(std::span<const Product<double>>, ThreadPool&);
template void Project(std::span<const Projection<float>>, ThreadPool&);
template void Project(std::span<const Projection<double>>, ThreadPool&);

}  // namespace switchyard::train
