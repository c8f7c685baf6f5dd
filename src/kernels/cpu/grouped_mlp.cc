// GroupedMlp in two loops: gate, up and activation into the scratch; then down. Tasks are blocks of
// one expert's columns, so that a single token's few experts still occupy every thread.
#include <vector>

#include "core/check.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

constexpr int64_t kTaskColumns = 128;

// One call of GroupedMlp, with the experts that have rows.
struct Run {
  const GroupedMlpParams& p;
  const cpu::Leaves& leaves;
  const std::vector<int32_t>& experts;
  int64_t width, hidden;  // I, H

  void Middle(int64_t task) const {
    const int64_t blocks = CeilDiv(width, kTaskColumns);
    const int32_t e = experts[task / blocks];
    const ExpertWeights& w = p.experts[e];
    const int64_t first = p.offsets[e], m = p.offsets[e + 1] - first;
    const int64_t begin = task % blocks * kTaskColumns;
    const int64_t end = std::min(width, begin + kTaskColumns);

    // `up` needs only this task's columns: its rows are kTaskColumns apart.
    float* scratch = cpu::ThreadScratch(cpu::LinearScratch(hidden) + m * kTaskColumns);
    float* up = scratch + cpu::LinearScratch(hidden);
    cpu::LinearTask t = {
        .w = cpu::MakeRef(w.gate),
        .x = p.row_ids != nullptr ? cpu::RowSource{p.x, p.ldx, p.row_ids + first}
                                  : cpu::RowSource{p.x + first * p.ldx, p.ldx, nullptr},
        .m = m,
        .begin = begin,
        .end = end,
        .bias = w.gate_bias,
        .y = p.scratch + first * width,
        .ldy = width,
        .accumulate = false,
        .scratch = scratch,
    };
    leaves.linear(t);
    t.w = cpu::MakeRef(w.up);
    t.bias = w.up_bias;
    t.y = up - begin;
    t.ldy = kTaskColumns;
    leaves.linear(t);
    for (int64_t i = 0; i < m; ++i) {
      Activate(p.scratch + (first + i) * width + begin, up + i * kTaskColumns, end - begin);
    }
  }

  void Activate(float* gate, const float* up, int64_t n) const {
    switch (p.activation) {
      case Activation::kSwiGlu:
        return leaves.swiglu(gate, up, n);
      case Activation::kSwiGluClamped:
        return leaves.swiglu_clamped(gate, up, n, p.alpha, p.limit);
    }
  }

  void Down(int64_t task) const {
    const int64_t blocks = CeilDiv(hidden, kTaskColumns);
    const int32_t e = experts[task / blocks];
    const ExpertWeights& w = p.experts[e];
    const int64_t first = p.offsets[e];
    const int64_t begin = task % blocks * kTaskColumns;
    leaves.linear({
        .w = cpu::MakeRef(w.down),
        .x = {p.scratch + first * width, width, nullptr},
        .m = p.offsets[e + 1] - first,
        .begin = begin,
        .end = std::min(hidden, begin + kTaskColumns),
        .bias = w.down_bias,
        .y = p.out + first * p.ldo,
        .ldy = p.ldo,
        .accumulate = false,
        .scratch = cpu::ThreadScratch(cpu::LinearScratch(width)),
    });
  }
};

}  // namespace

void GroupedMlp(const GroupedMlpParams& p, ThreadPool& pool) {
  const cpu::Leaves* leaves = cpu::ActiveLeaves();
  if (leaves == nullptr) return reference::GroupedMlp(p);
  CHECK_EQ(p.offsets.size(), p.experts.size() + 1);
  static thread_local std::vector<int32_t> busy;
  busy.clear();
  for (size_t e = 0; e < p.experts.size(); ++e) {
    if (p.offsets[e] < p.offsets[e + 1]) busy.push_back(static_cast<int32_t>(e));
  }
  if (busy.empty()) return;
  const ExpertWeights& w = p.experts[busy[0]];
  const Run run = {p, *leaves, busy, w.gate.n, w.down.n};
  const auto count = static_cast<int64_t>(busy.size());
  cpu::RunTasks(pool, count * CeilDiv(run.width, kTaskColumns),
                [&](int64_t task) { run.Middle(task); });
  cpu::RunTasks(pool, count * CeilDiv(run.hidden, kTaskColumns),
                [&](int64_t task) { run.Down(task); });
}

}  // namespace switchyard::kernels
