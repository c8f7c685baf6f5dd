// Shared by the drivers in cpu/*.cc: the active kernel table, scratch buffers, loop partitioning.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "core/parallel.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/kernel_table.h"
#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Whether the CPU has AVX512_VNNI (int8 products). Optional within Isa::kAvx512.
bool HasAvx512Vnni();

// Whether the CPU has AVX512_BF16 (bfloat16 products). Optional within Isa::kAvx512.
bool HasAvx512BF16();

// Whether the CPU has AVX512_VBMI (permutations of bytes). Optional within Isa::kAvx512.
bool HasAvx512Vbmi();

// Kernel table of ActiveIsa(); null for kReference.
const KernelTable* ActiveKernels();

// Per-thread scratch of `count` floats, aligned to 64 bytes, valid until the thread's next call.
// Grows to the largest request and is kept.
float* ThreadScratch(int64_t count);

// Per-op scratch of the calling thread: `bytes` bytes, aligned to 64, valid until its next op.
// Tasks of the op use ThreadScratch instead.
char* OpScratch(int64_t bytes);

WeightRef MakeRef(const WeightView& w);

// Address of the first element of a row of the view, or of the panel that holds it.
const void* RowAddress(const WeightView& w, int64_t row);

// Floats of scratch that the kernels need for rows of k columns.
int64_t LinearScratch(int64_t k);
int64_t ColumnsScratch();
int64_t AttentionScratch(int64_t k_width, int64_t v_width);
// Floats of the partial sums of `queries` queries over one part of their keys.
int64_t PartialFloats(int64_t queries, int64_t v_width);

// pool.Run and pool.RunRanges without a heap copy of `body`.
template <typename Body>
void RunTasks(ThreadPool& pool, int64_t n, const Body& body) {
  pool.Run(n, std::cref(body));
}

// Work of a product with m rows of x, as in kTaskWork. Smaller weights take as long as bytes.
inline int64_t WorkOf(const WeightView& w, int64_t m) {
  const double bytes = std::max(1.0, BytesPerWeight(w.format));
  return static_cast<int64_t>(static_cast<double>(m * w.n * w.k) * bytes);
}
constexpr bool IsSmall(int64_t work) { return work < 2 * kTaskWork; }

// RunTasks for products with `work` in all.
template <typename Body>
void RunProductTasks(ThreadPool& pool, int64_t n, int64_t work, const Body& body) {
  if (!IsSmall(work)) return RunTasks(pool, n, body);
  for (int64_t i = 0; i < n; ++i) body(i);
}

// Runs body(task, next) for all tasks in [0, n), sorted from compute-bound to memory-bound. Half of
// the threads start at each end, and they meet in the middle, so that both kinds run concurrently.
// `next`: the task that this thread probably runs next, or -1; a prefetch hint. `work`: of all
// tasks.
template <typename Body>
void RunFromBothEnds(ThreadPool& pool, int64_t n, int64_t work, const Body& body) {
  if (IsSmall(work)) {
    for (int64_t i = 0; i < n; ++i) body(i, i + 1 < n ? i + 1 : -1);
    return;
  }
  constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<int64_t> taken{0}, first{0}, last{n};
  const int64_t threads = pool.num_threads();
  const auto drain = [&](int64_t thread) {
    while (taken.fetch_add(1, kRelaxed) < n) {
      const bool ascends = thread % 2 == 0;
      const int64_t task = ascends ? first.fetch_add(1, kRelaxed) : last.fetch_sub(1, kRelaxed) - 1;
      const int64_t next = ascends ? task + (threads + 1) / 2 : task - threads / 2;
      body(task, next < n ? std::max<int64_t>(next, -1) : -1);
    }
  };
  RunTasks(pool, std::min(threads, n), drain);
}

// Partitions m rows of n elements. Pieces have at least about 16 Ki elements, because waking a
// thread costs as much as computing such a piece.
template <typename Body>
void RunRows(ThreadPool& pool, int64_t m, int64_t n, const Body& body) {
  constexpr int64_t kGrain = 16384;
  pool.RunRanges(m, (kGrain + n - 1) / (n > 0 ? n : 1), std::cref(body));
}

}  // namespace switchyard::kernels::cpu
