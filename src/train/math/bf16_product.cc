#include "train/math/bf16_product.h"

#include <cpuid.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"
#include "kernels/ops.h"
#include "train/math/leaves.h"
#include "train/math/pair_leaves.h"

namespace switchyard::train {
namespace {

// Of C: rows a multiple of a register tile's six, so that few are left over.
constexpr int64_t kTileRows = 48, kTileColumns = 4 * kPanel;

int64_t Pieces(int64_t n, int64_t of) { return (n + of - 1) / of; }

// A or B: k inner steps by `count` rows of A or columns of B.
struct Side {
  const float* data;
  int64_t along, across;  // strides in elements, one of them 1
  int64_t count, k;
  int64_t piece;  // rows or columns that are packed together
  bool rows;      // packed as [count][pairs] instead of [pieces][pairs][kPanel]

  bool operator==(const Side&) const = default;
  int64_t pairs() const { return (k + 1) / 2; }
  int64_t packed() const { return (rows ? count : Pieces(count, piece) * kPanel) * pairs(); }
};

// A whose rows are contiguous stays so: their elements are read one at a time anyway.
Side SideA(const Product<float>& p) {
  return {p.a, p.a_col, p.a_row, p.m, p.k, kTileRows, p.a_col == 1};
}
Side SideB(const Product<float>& p) { return {p.b, p.b_row, p.b_col, p.n, p.k, kPanel, false}; }

// Memory of a thread that grows and is kept.
float* Scratch(int64_t count) {
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

// Rows or columns [first, first + piece).
void PackPiece(const Side& s, int64_t first, const PairLeaves& leaves, float* out) {
  const int64_t n = std::min(s.piece, s.count - first), pairs = s.pairs();
  const float* in = s.data + first * s.across;
  if (s.rows) {
    for (int64_t i = 0; i < n; ++i) leaves.round_row(in + i * s.across, s.k, out + i * pairs);
    return;
  }
  if (s.across == 1) {
    for (int64_t q = 0; q < pairs; ++q, in += 2 * s.along)
      leaves.pair_rows(in, 2 * q + 1 < s.k ? in + s.along : nullptr, n, out + q * kPanel);
    return;
  }
  CHECK_EQ(s.along, 1);
  float* rounded = Scratch(n * pairs);
  for (int64_t i = 0; i < n; ++i) leaves.round_row(in + i * s.across, s.k, rounded + i * pairs);
  if (n < kPanel) std::fill_n(out, pairs * kPanel, 0.0f);
  ActiveLeaves()->transpose(rounded, pairs, n, pairs, out, kPanel);
}

// A side and where it is packed.
struct Packed {
  Side side;
  float* out;
};

// One side of all products. Products that stand together often share one: gate and up their input.
std::vector<Packed> Place(std::span<const Product<float>> products,
                          Side (*side_of)(const Product<float>&), int64_t* count) {
  std::vector<Packed> all;
  for (const Product<float>& p : products) {
    const Side side = side_of(p);
    const bool shared = !all.empty() && all.back().side == side;
    all.push_back({side, nullptr});
    if (!shared) *count += side.packed();
  }
  return all;
}

struct Task {
  const Packed* packed;
  int64_t first;
};

void AddPieces(std::vector<Packed>* all, float** next, std::vector<Task>* tasks) {
  const Packed* before = nullptr;
  for (Packed& p : *all) {
    if (before != nullptr && before->side == p.side) {
      p.out = before->out;
    } else {
      p.out = *next;
      *next += p.side.packed();
      for (int64_t i = 0; i < p.side.count; i += p.side.piece) tasks->push_back({&p, i});
    }
    before = &p;
  }
}

void MultiplyTile(const Product<float>& p, const Packed& a, const Packed& b, int64_t i, int64_t j,
                  const PairLeaves& leaves) {
  const int64_t pairs = a.side.pairs();
  const bool rows = a.side.rows;
  for (int64_t column = j; column < std::min(p.n, j + kTileColumns); column += kPanel) {
    leaves.multiply({.a = a.out + (rows ? i : i / kTileRows * kPanel) * pairs,
                     .a_row = rows ? pairs : 1,
                     .a_col = rows ? 1 : kPanel,
                     .b = b.out + column * pairs,
                     .b_row = kPanel,
                     .c = p.c + i * p.ldc + column,
                     .ldc = p.ldc,
                     .m = std::min(kTileRows, p.m - i),
                     .n = std::min(kPanel, p.n - column),
                     .k = pairs,
                     .accumulate = p.accumulate});
  }
}

int64_t Elements(std::span<const Product<float>> products) {
  int64_t count = 0;
  for (const Product<float>& p : products) count += (p.m + p.n) * p.k;
  return count;
}

// Dense, in the order in which it is stored; strides are those of the copy afterwards.
float* RoundedCopy(const float* in, int64_t rows, int64_t columns, int64_t* row, int64_t* column,
                   float* out) {
  const bool turned = *column != 1;
  const int64_t outer = turned ? columns : rows, inner = turned ? rows : columns;
  const int64_t stride = turned ? *column : *row;
  CHECK_EQ(turned ? *row : *column, 1);
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t j = 0; j < inner; ++j) out[i * inner + j] = RoundedToBFloat16(in[i * stride + j]);
  (turned ? *column : *row) = inner;
  return out;
}

}  // namespace

float RoundedToBFloat16(float x) {
  return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : ToFloat(ToBF16(x));
}

const PairLeaves* ActivePairLeaves() {
  static const bool has = [] {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & bit_AVX512BF16) != 0;
  }();
  return has && kernels::ActiveIsa() >= kernels::Isa::kAvx512 ? &avx512::kPairLeaves : nullptr;
}

void MultiplyPairs(std::span<const Product<float>> products, const PairLeaves& leaves, int threads,
                   ThreadPool& pool) {
  const auto run = [&](size_t n, const std::function<void(int64_t)>& body) {
    if (threads > 1) return pool.Run(static_cast<int64_t>(n), body);
    for (size_t i = 0; i < n; ++i) body(static_cast<int64_t>(i));
  };
  int64_t count = 0;
  std::vector<Packed> a = Place(products, SideA, &count), b = Place(products, SideB, &count);
  Temporary<float> room(count);
  float* next = room.data();
  std::vector<Task> pieces;
  AddPieces(&a, &next, &pieces);
  AddPieces(&b, &next, &pieces);
  run(pieces.size(), [&](int64_t t) {
    const auto& [packed, first] = pieces[t];
    const Side& s = packed->side;
    const int64_t at = s.rows ? first : first / s.piece * kPanel;
    PackPiece(s, first, leaves, packed->out + at * s.pairs());
  });
  struct Tile {
    size_t product;
    int64_t i, j;
  };
  std::vector<Tile> tiles;
  for (size_t q = 0; q < products.size(); ++q) {
    CHECK_EQ(products[q].scale, 1.0f);
    for (int64_t i = 0; i < products[q].m; i += kTileRows)
      for (int64_t j = 0; j < products[q].n; j += kTileColumns) tiles.push_back({q, i, j});
  }
  run(tiles.size(), [&](int64_t t) {
    const auto [q, i, j] = tiles[t];
    MultiplyTile(products[q], a[q], b[q], i, j, leaves);
  });
}

RoundedOperands::RoundedOperands(std::span<const Product<float>> products)
    : memory_(Elements(products)), products_(products.begin(), products.end()) {
  float* next = memory_.data();
  for (Product<float>& p : products_) {
    p.a = RoundedCopy(p.a, p.m, p.k, &p.a_row, &p.a_col, next);
    next += p.m * p.k;
    p.b = RoundedCopy(p.b, p.k, p.n, &p.b_row, &p.b_col, next);
    next += p.k * p.n;
  }
}

namespace {
constexpr uint32_t kFlush = 0x8040;  // MXCSR: results to zero, operands are zeros
}

FlushSmall::FlushSmall(bool on) : saved_(_mm_getcsr()) {
  if (on) _mm_setcsr(saved_ | kFlush);
}
FlushSmall::~FlushSmall() { _mm_setcsr(saved_); }

}  // namespace switchyard::train
