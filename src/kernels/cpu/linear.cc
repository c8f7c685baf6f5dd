// Drivers of Linear, LinearGroup and HeadLinear. Tasks partition the weight rows, and also the rows
// of x if there are few weight rows.
#include <algorithm>
#include <span>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

using cpu::kPanelRows;
using cpu::kTaskWork;

// Partition of one linear into `columns` times `batches` tasks.
struct Partition {
  int64_t columns = 0, batches = 1;
  int64_t tasks() const { return columns * batches; }
};

// Makes several tasks per thread, to balance load if other processes slow down some threads. Tasks
// are long enough that weights stream from memory. `work`: of all linears (kTaskWork).
Partition PartitionLinear(int64_t m, int64_t n, int64_t total_n, int64_t work, int threads) {
  if (m == 0 || n == 0) return {};
  const int64_t wanted =
      threads == 1 ? 1 : std::clamp<int64_t>(work / kTaskWork, 1, int64_t{8} * threads);
  const int64_t rows =
      std::max(kPanelRows, CeilDiv(CeilDiv(total_n, wanted), kPanelRows) * kPanelRows);
  Partition partition = {.columns = CeilDiv(n, rows)};
  const int64_t all = CeilDiv(total_n, rows);
  if (threads > 1 && all < 2 * threads) {
    constexpr int64_t kMinRowsPerTask = 48;
    partition.batches = std::clamp<int64_t>(m / kMinRowsPerTask, 1, CeilDiv(2 * threads, all));
  }
  return partition;
}

bool SharesInput(const LinearParams& a, const LinearParams& b) {
  return a.x == b.x && a.ldx == b.ldx && a.m == b.m && a.w.k == b.w.k && cpu::SameInput(a.w, b.w);
}

cpu::InputRowFormats FormsOf(const WeightView& w) {
  cpu::InputRowFormats forms;
  forms.Add(cpu::InputRowFormatOf(w));
  return forms;
}

cpu::RoundedRows RoundInput(const LinearParams& p, char* memory, ThreadPool& pool) {
  const cpu::RoundedRows rows = cpu::AssignRoundedBuffers(p.m, p.w.k, FormsOf(p.w), memory);
  cpu::RunRows(pool, p.m, p.w.k, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rows.Put(p.w, i, p.x + i * p.ldx);
  });
  return rows;
}

// Returns one entry per part; it is empty if the part's weight takes unrounded float32 rows. Parts
// that need the same rows in the same format share one copy. The result is thread_local and the
// rows are in OpScratch: the next op of this thread overwrites both.
std::span<const cpu::RoundedRows> RoundInputs(std::span<const LinearParams> parts,
                                              ThreadPool& pool) {
  static thread_local std::vector<cpu::RoundedRows> inputs;
  inputs.assign(parts.size(), {});
  const auto first_like = [&](size_t i) {
    size_t first = 0;
    while (!SharesInput(parts[first], parts[i])) ++first;
    return first;
  };
  const auto bytes_of = [&](size_t i) {
    const LinearParams& p = parts[i];
    if (p.w.activation == ActivationFormat::kNone || first_like(i) != i) return int64_t{0};
    return cpu::RoundedBytes(p.m, p.w.k, FormsOf(p.w));
  };
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) bytes += bytes_of(i);
  if (bytes == 0) return inputs;
  char* memory = cpu::OpScratch(bytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t own = bytes_of(i);
    inputs[i] = own > 0 ? RoundInput(parts[i], memory, pool) : inputs[first_like(i)];
    memory += own;
  }
  return inputs;
}

void RunTask(const cpu::KernelTable& kernels, const LinearParams& p, const cpu::RoundedRows& input,
             const Partition& partition, int64_t task, int64_t threads) {
  const int64_t column = task % partition.columns, batch = task / partition.columns;
  const int64_t first = p.m * batch / partition.batches,
                last = p.m * (batch + 1) / partition.batches;
  // Whole panels, so that only the last task ends in a partial one.
  const int64_t panels = CeilDiv(p.w.n, kPanelRows);
  const auto begin_of = [&](int64_t c) { return panels * c / partition.columns * kPanelRows; };
  // All threads take tasks from one counter, so the next task of this thread is probably `threads`
  // tasks later.
  const int64_t later = column + threads;
  cpu::LinearTask t = {
      .w = cpu::MakeRef(p.w),
      .x = {p.x + first * p.ldx, p.ldx, nullptr},
      .codes = {},
      .m = last - first,
      .begin = begin_of(column),
      .end = std::min(p.w.n, begin_of(column + 1)),
      .bias = p.bias,
      .y = p.y + first * p.ldy,
      .ldy = p.ldy,
      .accumulate = p.accumulate,
      .scratch = cpu::ThreadScratch(cpu::LinearScratch(p.w.k)),
      .next = later < partition.columns ? cpu::RowAddress(p.w, begin_of(later)) : nullptr,
  };
  cpu::RunLinear(kernels, p.w, input, first, nullptr, t);
}

// Tasks of each head: of whole panels of rows, and about eight tasks per thread.
int64_t PartsOfHead(std::span<const WeightView> heads, int threads) {
  if (threads == 1) return 1;
  int64_t rows = 0;
  for (const WeightView& w : heads) rows = std::max(rows, w.n);
  const int64_t wanted = CeilDiv(int64_t{8} * threads, static_cast<int64_t>(heads.size()));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, CeilDiv(rows, kPanelRows)));
}

}  // namespace

void Linear(const LinearParams& p, ThreadPool& pool) { LinearGroup({&p, 1}, pool); }

void LinearGroup(std::span<const LinearParams> parts, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) {
    for (const LinearParams& p : parts) reference::Linear(p);
    return;
  }
  int64_t total_n = 0, work = 0, tasks = 0;
  for (const LinearParams& p : parts) {
    CHECK_GT(p.w.k, 0);
    total_n += p.w.n;
    work += cpu::WorkOf(p.w, p.m);
  }
  const auto partition_of = [&](const LinearParams& p) {
    return PartitionLinear(p.m, p.w.n, total_n, work, pool.num_threads());
  };
  for (const LinearParams& p : parts) tasks += partition_of(p).tasks();
  const std::span<const cpu::RoundedRows> inputs = RoundInputs(parts, pool);
  cpu::RunProductTasks(pool, tasks, work, [&](int64_t task) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const Partition partition = partition_of(parts[i]);
      if (task < partition.tasks()) {
        return RunTask(*kernels, parts[i], inputs[i], partition, task, pool.num_threads());
      }
      task -= partition.tasks();
    }
  });
}

void HeadLinear(const HeadLinearParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::HeadLinear(p);
  const auto heads = static_cast<int64_t>(p.w.size());
  if (heads == 0 || p.m == 0) return;
  const auto source = [&](int64_t head) { return p.x + head * p.head_stride_x; };
  const auto target = [&](int64_t head) { return p.y + head * p.head_stride_y; };
  int64_t work = 0;
  for (const WeightView& w : p.w) work += cpu::WorkOf(w, p.m);
  if (p.transposed) {
    // Few heads (the output groups of compressed attention) have several tasks each.
    const int64_t parts = PartsOfHead(p.w, pool.num_threads());
    cpu::RunProductTasks(pool, heads * parts, work, [&](int64_t task) {
      const int64_t head = task / parts, part = task % parts;
      const WeightView& w = p.w[head];
      const int64_t panels = CeilDiv(w.n, kPanelRows);
      const int64_t begin = panels * part / parts * kPanelRows;
      const int64_t end = std::min(w.n, panels * (part + 1) / parts * kPanelRows);
      if (begin >= end) return;
      kernels->linear({
          .w = cpu::MakeRef(w),
          .x = {source(head), p.ldx, nullptr},
          .codes = {},
          .m = p.m,
          .begin = begin,
          .end = end,
          .bias = nullptr,
          .y = target(head),
          .ldy = p.ldy,
          .accumulate = false,
          .scratch = cpu::ThreadScratch(cpu::LinearScratch(w.k)),
      });
    });
    return;
  }
  cpu::RunProductTasks(pool, heads, work, [&](int64_t head) {
    const WeightView& w = p.w[head];
    for (int64_t c = 0; c < w.k; c += cpu::kColumnBlock) {
      kernels->columns({
          .w = cpu::MakeRef(w),
          .x = source(head),
          .ldx = p.ldx,
          .y = target(head),
          .ldy = p.ldy,
          .m = p.m,
          .begin = c,
          .end = std::min(w.k, c + cpu::kColumnBlock),
          .scratch = cpu::ThreadScratch(cpu::ColumnsScratch()),
      });
    }
  });
}

}  // namespace switchyard::kernels
