// What the drivers of cpu/*.cc share: the leaves in use, a thread's scratch, how loops are cut.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "core/parallel.h"
#include "kernels/cpu/leaves.h"
#include "quant/weight_view.h"

namespace switchyard::kernels::cpu {

// Whether the CPU multiplies int8 in AVX-512 registers; a part of Isa::kAvx512 that some lack.
bool HasAvx512Vnni();

// Likewise, pairs in bfloat16 (AVX512_BF16).
bool HasAvx512BF16();

// The leaves of ActiveIsa(); null when that is kReference.
const Leaves* ActiveLeaves();

// `count` floats, aligned to 64 bytes, of the calling thread; valid until its next call. The memory
// grows to the largest request and is kept.
float* ThreadScratch(int64_t count);

// `bytes`, aligned to 64, of the calling thread, for the whole of one op; its tasks have
// ThreadScratch. Valid until the thread's next op.
char* CallScratch(int64_t bytes);

WeightRef MakeRef(const WeightView& w);

// Where a row of the view begins in memory.
const void* RowAddress(const WeightView& w, int64_t row);

// Floats of scratch that leaves need.
int64_t LinearScratch(int64_t k);
int64_t ColumnsScratch();
int64_t AttentionScratch(int64_t k_width, int64_t v_width);
// Floats of what `queries` queries have summed over a part of their keys.
int64_t PartialFloats(int64_t queries, int64_t v_width);

// pool.Run and pool.RunRanges without a copy of `body` on the heap.
template <typename Body>
void RunTasks(ThreadPool& pool, int64_t n, const Body& body) {
  pool.Run(n, std::cref(body));
}

// Runs body(task, next) for all tasks in [0, n), which are sorted from those that compute most to
// those that read most for what they compute. Half of the threads begin at either end, so that
// both kinds run side by side, and meet in the middle. `next`: the task that the thread probably
// runs after this one, or -1.
template <typename Body>
void RunFromBothEnds(ThreadPool& pool, int64_t n, const Body& body) {
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

// Cuts m rows of n elements each; pieces of fewer than about 16 Ki elements stay whole, because
// waking a thread costs as much as computing them.
template <typename Body>
void RunRows(ThreadPool& pool, int64_t m, int64_t n, const Body& body) {
  constexpr int64_t kGrain = 16384;
  pool.RunRanges(m, (kGrain + n - 1) / (n > 0 ? n : 1), std::cref(body));
}

}  // namespace switchyard::kernels::cpu
