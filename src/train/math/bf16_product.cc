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
#include "train/math/kernel_table.h"

namespace switchyard::train {
namespace {

// Tile of C. The number of rows is a multiple of six, the rows of a register tile, so that few rows
// remain.
constexpr int64_t kTileRows = 48, kTileColumns = 4 * kPanel;
// Minimum tasks per thread if there are enough rows, for load balance.
constexpr int64_t kTasks = 8;

// kSteps: steps along the inner dimension that one packing task handles. kFewSteps: steps that the
// task packs for all columns before it goes on. Both are even, because pairs are packed.
constexpr int64_t kSteps = 128, kFewSteps = 8;

int64_t Pieces(int64_t n, int64_t of) { return (n + of - 1) / of; }

// Operand A or B: k inner steps by `count` rows of A or columns of B.
struct PairOperand {
  const float* data;
  // Strides in elements along the inner and the outer dimension; one of them is 1.
  int64_t inner, outer;
  int64_t count, k;
  int64_t piece = 1;  // rows or columns in one packed panel

  bool operator==(const PairOperand&) const = default;
  int64_t pairs() const { return (k + 1) / 2; }
  int64_t packed() const { return Pieces(count, piece) * kPanel * pairs(); }
};
PairOperand OperandA(const Product<float>& p) {
  return {p.a, p.a_col, p.a_row, p.m, p.k, kTileRows};
}
PairOperand OperandB(const Product<float>& p) { return {p.b, p.b_row, p.b_col, p.n, p.k, kPanel}; }

// True if A has contiguous rows. Such an A is not packed in advance, because the kernel reads
// single elements of A. Each task rounds the few rows that it reads, which stay in its caches.
bool ReadsRows(const Product<float>& p) { return p.a_col == 1; }

// Thread-local buffer that grows and is reused.
float* Scratch(int64_t count) {
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < count) memory.resize(count);
  return memory.data();
}

// Packs steps [first, first + kSteps) of all columns, if the columns of a step are contiguous.
// Reads kFewSteps steps over all columns at a time, because the hardware prefetcher detects these
// sequential reads.
void PackSteps(const PairOperand& s, int64_t first, const PairKernels& kernels, float* out) {
  const int64_t end = std::min(s.k, first + kSteps), pairs = s.pairs();
  for (int64_t step = first; step < end; step += kFewSteps) {
    const float* in = s.data + step * s.inner;
    for (int64_t i = 0; i < s.count; i += s.piece)
      kernels.pair_rows(in + i, s.inner, std::min(kFewSteps, end - step),
                        std::min(s.piece, s.count - i),
                        out + (i / s.piece * pairs + step / 2) * kPanel, kPanel);
  }
}

// Packs columns [first, first + piece), each of which is contiguous.
void PackColumns(const PairOperand& s, int64_t first, const PairKernels& kernels, float* out) {
  const int64_t n = std::min(s.piece, s.count - first), pairs = s.pairs();
  const float* in = s.data + first * s.outer;
  out += first / s.piece * kPanel * pairs;
  CHECK_EQ(s.inner, 1);
  float* rounded = Scratch(n * pairs);
  kernels.round_rows(in, s.outer, n, s.k, rounded, pairs);
  if (n < kPanel) std::fill_n(out, pairs * kPanel, 0.0f);
  ActiveKernels()->transpose(rounded, pairs, n, pairs, out, kPanel);
}

// An operand and its packed copy.
struct PackedOperand {
  PairOperand operand;
  float* out;
};

struct Piece {
  const PackedOperand* packed;
  int64_t first;
};

// The operands that are packed once for all tasks. Consecutive products may share an operand, such
// as the input of gate and up. Built before the tasks start; then read-only.
class PackedOperands {
 public:
  explicit PackedOperands(std::span<const Product<float>> products) {
    for (const Product<float>& p : products) {
      Add(ReadsRows(p) ? PairOperand{} : OperandA(p), &a_);
      Add(OperandB(p), &b_);
    }
  }
  int64_t count() const { return count_; }  // floats
  void Place(float* memory) {
    for (std::vector<PackedOperand>* all : {&a_, &b_}) {
      for (size_t i = 0; i < all->size(); ++i) {
        PackedOperand& p = (*all)[i];
        if (i > 0 && (*all)[i - 1].operand == p.operand) {
          p.out = (*all)[i - 1].out;
          continue;
        }
        p.out = memory;
        memory += p.operand.packed();
        const bool steps = p.operand.outer == 1;
        const int64_t end = steps ? p.operand.k : p.operand.count;
        if (p.operand.count == 0) continue;
        for (int64_t first = 0; first < end; first += steps ? kSteps : p.operand.piece)
          pieces_.push_back({&p, first});
      }
    }
  }
  const std::vector<Piece>& pieces() const { return pieces_; }
  const PackedOperand& a(size_t product) const { return a_[product]; }
  const PackedOperand& b(size_t product) const { return b_[product]; }

 private:
  void Add(const PairOperand& operand, std::vector<PackedOperand>* all) {
    if (all->empty() || !(all->back().operand == operand)) count_ += operand.packed();
    all->push_back({operand, nullptr});
  }
  std::vector<PackedOperand> a_, b_;
  std::vector<Piece> pieces_;
  int64_t count_ = 0;
};

// Rows [i, i + kTileRows) and columns [j, j + n) of one product, or of several products with the
// same unpacked A.
struct Task {
  size_t first, last;
  int64_t i, j, n;
};

std::vector<Task> Tasks(std::span<const Product<float>> products, int threads) {
  std::vector<Task> tasks;
  int64_t pieces = 0;
  for (const Product<float>& p : products) pieces += Pieces(p.m, kTileRows);
  const bool few = pieces < kTasks * threads;
  for (size_t first = 0, last; first < products.size(); first = last) {
    const Product<float>& p = products[first];
    int64_t n = p.n;
    for (last = first + 1; last < products.size() && ReadsRows(p) && ReadsRows(products[last]) &&
                           OperandA(products[last]) == OperandA(p);
         ++last)
      n = std::max(n, products[last].n);
    const int64_t columns = few || !ReadsRows(p) ? kTileColumns : n;
    for (int64_t i = 0; i < p.m; i += kTileRows)
      for (int64_t j = 0; j < n; j += columns) tasks.push_back({first, last, i, j, columns});
  }
  return tasks;
}

void Do(const Task& t, std::span<const Product<float>> products, const PackedOperands& operands,
        const PairKernels& kernels) {
  const Product<float>& shared = products[t.first];
  const bool rows = ReadsRows(shared);
  const int64_t m = std::min(kTileRows, shared.m - t.i), pairs = (shared.k + 1) / 2;
  const float* a = nullptr;
  if (rows) {
    float* rounded = Scratch(m * pairs);
    kernels.round_rows(shared.a + t.i * shared.a_row, shared.a_row, m, shared.k, rounded, pairs);
    a = rounded;
  } else {
    a = operands.a(t.first).out + t.i / kTileRows * kPanel * pairs;
  }
  for (size_t q = t.first; q < t.last; ++q) {
    const Product<float>& p = products[q];
    for (int64_t column = t.j; column < std::min(p.n, t.j + t.n); column += kPanel) {
      kernels.multiply({.a = a,
                        .a_row = rows ? pairs : 1,
                        .a_col = rows ? 1 : kPanel,
                        .b = operands.b(q).out + column * pairs,
                        .b_row = kPanel,
                        .c = p.c + t.i * p.ldc + column,
                        .ldc = p.ldc,
                        .m = m,
                        .n = std::min(kPanel, p.n - column),
                        .k = pairs,
                        .accumulate = p.accumulate});
    }
  }
}

int64_t Elements(std::span<const Product<float>> products) {
  int64_t count = 0;
  for (const Product<float>& p : products) count += (p.m + p.n) * p.k;
  return count;
}

// Makes a dense copy in storage order with rounded elements. Sets `*row` and `*column` to the
// strides of the copy.
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

const PairKernels* ActivePairKernels() {
  static const bool has = [] {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & bit_AVX512BF16) != 0;
  }();
  return has && kernels::ActiveIsa() >= kernels::Isa::kAvx512 ? &avx512::kPairKernels : nullptr;
}

void MultiplyPairs(std::span<const Product<float>> products, const PairKernels& kernels,
                   int threads, ThreadPool& pool) {
  const auto run = [&](size_t n, const std::function<void(int64_t)>& body) {
    if (threads > 1) return pool.Run(static_cast<int64_t>(n), body);
    for (size_t i = 0; i < n; ++i) body(static_cast<int64_t>(i));
  };
  for (const Product<float>& p : products) CHECK_EQ(p.scale, 1.0f);
  PackedOperands operands(products);
  ScratchBuffer<float> room(operands.count());
  operands.Place(room.data());
  run(operands.pieces().size(), [&](int64_t t) {
    const auto& [packed, first] = operands.pieces()[t];
    const PairOperand& s = packed->operand;
    (s.outer == 1 ? PackSteps : PackColumns)(s, first, kernels, packed->out);
  });
  const std::vector<Task> tasks = Tasks(products, threads);
  run(tasks.size(), [&](int64_t t) { Do(tasks[t], products, operands, kernels); });
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
constexpr uint32_t kFlush = 0x8040;  // MXCSR: flush-to-zero, denormals-are-zero
}

FlushSubnormals::FlushSubnormals(bool on) : saved_(_mm_getcsr()) {
  if (on) _mm_setcsr(saved_ | kFlush);
}
FlushSubnormals::~FlushSubnormals() { _mm_setcsr(saved_); }

}  // namespace switchyard::train
