// GroupedMlp in two parallel loops: gate, up and activation into the scratch (GroupedGateUp); then
// down (GroupedDown). A task is a block of columns of one expert, so that the few experts of a
// single token still occupy every thread. Experts with many rows are compute-bound, those with few
// rows memory-bound; both kinds run concurrently. Input rows are rounded before each loop if the
// experts' weights require it.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/check.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/cpu/rounded_rows.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

// The formats to which a set of weights needs its input rows rounded. `alike`: all weights need the
// same format, so they share the rounded rows.
struct Forms {
  cpu::InputRowFormats forms;
  bool alike = true;
};

template <typename WeightOf>
Forms FormsOf(const std::vector<int32_t>& experts, const WeightOf& weight_of) {
  Forms forms;
  for (const int32_t e : experts) {
    const WeightView& w = weight_of(e);
    forms.forms.Add(cpu::InputRowFormatOf(w));
    forms.alike = forms.alike && cpu::SameInput(w, weight_of(experts[0]));
  }
  return forms;
}

// Rounded rows of x for gate and up: output row r reads row places[r].
struct Inputs {
  cpu::RoundedRows rows;
  const int32_t* places = nullptr;
};

// A row of x to round, for one expert.
struct Source {
  int32_t row, expert;
};

// Lists the rows to round. If all experts need the same format, a row that is routed to several
// experts is rounded once.
void ListSources(const GroupedMlpParams& p, const std::vector<int32_t>& experts, bool alike,
                 std::vector<Source>& sources, std::vector<int32_t>& places) {
  static thread_local std::vector<int32_t> place_of_row;
  place_of_row.clear();
  sources.clear();
  places.assign(p.offsets.back(), 0);
  for (const int32_t e : experts) {
    for (int32_t r = p.offsets[e]; r < p.offsets[e + 1]; ++r) {
      const int32_t row = p.row_ids != nullptr ? p.row_ids[r] : r;
      const auto next = static_cast<int32_t>(sources.size());
      if (alike) {
        if (row >= static_cast<int32_t>(place_of_row.size())) place_of_row.resize(row + 1, -1);
        places[r] = place_of_row[row] >= 0 ? place_of_row[row] : next;
        place_of_row[row] = places[r];
      } else {
        places[r] = next;
      }
      if (places[r] == next) sources.push_back({row, e});
    }
  }
}

Inputs RoundInputs(const GroupedMlpParams& p, const std::vector<int32_t>& experts, int64_t hidden,
                   ThreadPool& pool) {
  const auto gate = [&](int32_t e) -> const WeightView& { return p.experts[e].gate; };
  const auto [forms, alike] = FormsOf(experts, gate);
  if (!forms.any()) return {};
  static thread_local std::vector<Source> sources;
  static thread_local std::vector<int32_t> places;
  ListSources(p, experts, alike, sources, places);
  const auto count = static_cast<int64_t>(sources.size());
  char* memory = cpu::OpScratch(cpu::RoundedBytes(count, hidden, forms));
  const cpu::RoundedRows rows = cpu::AssignRoundedBuffers(count, hidden, forms, memory);
  const Source* source = sources.data();  // for other threads: `sources` is thread_local
  cpu::RunRows(pool, count, hidden, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const WeightView& w = p.experts[source[i].expert].gate;
      if (w.activation != ActivationFormat::kNone) rows.Put(w, i, p.x + source[i].row * p.ldx);
    }
  });
  return {rows, places.data()};
}

// Rounds the intermediate rows to the input formats of the down projection. Rounded rows that stay
// float32 overwrite p.scratch; int8 and bfloat16 rows go to OpScratch.
cpu::RoundedRows RoundIntermediate(const GroupedMlpParams& p, const std::vector<int32_t>& experts,
                                   int64_t width, ThreadPool& pool) {
  const auto down = [&](int32_t e) -> const WeightView& { return p.experts[e].down; };
  cpu::InputRowFormats forms = FormsOf(experts, down).forms;
  if (!forms.any()) return {};
  forms.floats = false;
  const int64_t count = p.offsets.back();
  char* memory = cpu::OpScratch(cpu::RoundedBytes(count, width, forms));
  cpu::RoundedRows rows = cpu::AssignRoundedBuffers(count, width, forms, memory);
  rows.x = p.scratch;
  rows.ldx = width;
  cpu::RunRows(pool, count, width, [&](int64_t begin, int64_t end) {
    auto e = std::upper_bound(p.offsets.begin(), p.offsets.end(), begin) - p.offsets.begin() - 1;
    for (int64_t r = begin; r < end; ++r) {
      while (r >= p.offsets[e + 1]) ++e;
      const WeightView& w = p.experts[e].down;
      if (w.activation != ActivationFormat::kNone) rows.Put(w, r, p.scratch + r * width);
    }
  });
  return rows;
}

// One call of GroupedMlp, restricted to experts that have rows.
struct Run {
  const GroupedMlpParams& p;
  const cpu::KernelTable& kernels;
  const std::vector<int32_t>& experts;   // sorted by rows, descending
  int64_t width, hidden;                 // I, H
  int64_t middle_columns, down_columns;  // columns per task
  Inputs inputs;
  cpu::RoundedRows middle;

  // `next`: the task that this thread probably runs next, or -1.
  void Middle(int64_t task, int64_t next) const {
    const int64_t blocks = CeilDiv(width, middle_columns);
    const int32_t e = experts[task / blocks];
    const ExpertWeights& w = p.experts[e];
    const int64_t first = p.offsets[e], m = p.offsets[e + 1] - first;
    const int64_t begin = task % blocks * middle_columns;
    const int64_t end = std::min(width, begin + middle_columns);

    // `up` holds only this task's columns; its row stride is middle_columns.
    float* scratch = cpu::ThreadScratch(cpu::LinearScratch(hidden) + m * middle_columns);
    float* up = scratch + cpu::LinearScratch(hidden);
    cpu::LinearTask t = {
        .w = cpu::MakeRef(w.gate),
        .x = p.row_ids != nullptr ? cpu::RowSource{p.x, p.ldx, p.row_ids + first}
                                  : cpu::RowSource{p.x + first * p.ldx, p.ldx, nullptr},
        .codes = {},
        .m = m,
        .begin = begin,
        .end = end,
        .bias = w.gate_bias,
        .y = p.scratch + first * width,
        .ldy = width,
        .accumulate = false,
        .scratch = scratch,
        .next = cpu::RowAddress(w.up, begin),
    };
    const int32_t* ids = inputs.places != nullptr ? inputs.places + first : nullptr;
    cpu::RunLinear(kernels, w.gate, inputs.rows, 0, ids, t);
    if (p.activation == Activation::kRelu2) {
      for (int64_t i = 0; i < m; ++i)
        SquarePositive(p.scratch + (first + i) * width + begin, end - begin);
      return;
    }
    t.w = cpu::MakeRef(w.up);
    t.bias = w.up_bias;
    t.next = next < 0 ? nullptr
                      : cpu::RowAddress(p.experts[experts[next / blocks]].gate,
                                        next % blocks * middle_columns);
    t.y = up - begin;
    t.ldy = middle_columns;
    cpu::RunLinear(kernels, w.up, inputs.rows, 0, ids, t);
    for (int64_t i = 0; i < m; ++i) {
      Activate(p.scratch + (first + i) * width + begin, up + i * middle_columns, end - begin);
    }
  }

  // May overwrite `up`.
  void Activate(float* gate, float* up, int64_t n) const {
    switch (p.activation) {
      case Activation::kSwiGlu:
        return kernels.swiglu(gate, up, n);
      case Activation::kSwiGluClamped:
        return kernels.swiglu_clamped(gate, up, n, p.alpha, p.limit);
      case Activation::kSwiGluLimited:
        Limit(gate, up, n, p.limit);
        return kernels.swiglu(gate, up, n);
      case Activation::kRelu2:
        CHECK(false);  // Middle
    }
  }

  // gate = min(gate, limit), up = clamp(up, ±limit). NaN stays NaN.
  static void Limit(float* gate, float* up, int64_t n, float limit) {
    for (int64_t i = 0; i < n; ++i) {
      gate[i] = gate[i] > limit ? limit : gate[i];
      up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    }
  }

  // NaN stays NaN.
  static void SquarePositive(float* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i] * x[i];
  }

  void Down(int64_t task, int64_t next) const {
    const int64_t blocks = CeilDiv(hidden, down_columns);
    const int32_t e = experts[task / blocks];
    const ExpertWeights& w = p.experts[e];
    const int64_t first = p.offsets[e];
    const int64_t begin = task % blocks * down_columns;
    const cpu::LinearTask t = {
        .w = cpu::MakeRef(w.down),
        .x = {p.scratch + first * width, width, nullptr},
        .codes = {},
        .m = p.offsets[e + 1] - first,
        .begin = begin,
        .end = std::min(hidden, begin + down_columns),
        .bias = w.down_bias,
        .y = p.out + first * p.ldo,
        .ldy = p.ldo,
        .accumulate = false,
        .scratch = cpu::ThreadScratch(cpu::LinearScratch(width)),
        .next = next < 0 ? nullptr
                         : cpu::RowAddress(p.experts[experts[next / blocks]].down,
                                           next % blocks * down_columns),
    };
    cpu::RunLinear(kernels, w.down, middle, first, nullptr, t);
  }
};

enum class Products : uint8_t { kGateUp, kDown, kBoth };

void RunProducts(const GroupedMlpParams& p, const cpu::KernelTable& kernels, Products products,
                 ThreadPool& pool) {
  CHECK_EQ(p.offsets.size(), p.experts.size() + 1);
  static thread_local std::vector<int32_t> busy;
  busy.clear();
  for (size_t e = 0; e < p.experts.size(); ++e) {
    if (p.offsets[e] < p.offsets[e + 1]) busy.push_back(static_cast<int32_t>(e));
  }
  if (busy.empty()) return;
  const auto order = [&](int32_t e) { return std::pair(p.offsets[e] - p.offsets[e + 1], e); };
  std::ranges::sort(busy, {}, order);  // by number of rows, descending
  for (const int32_t e : busy) CHECK(cpu::SameInput(p.experts[e].gate, p.experts[e].up));
  const ExpertWeights& w = p.experts[busy[0]];
  const auto columns = [&](int64_t n) {
    return cpu::ExpertTaskColumns(
        p.offsets.back(), -order(busy[0]).first, n, pool.num_threads(),
        /*prepares=*/cpu::InputRowFormatOf(w.gate) == cpu::InputRowFormat::kBFloat16Rows);
  };
  Run run = {.p = p,
             .kernels = kernels,
             .experts = busy,
             .width = w.gate.n,
             .hidden = w.down.n,
             .middle_columns = columns(w.gate.n),
             .down_columns = columns(w.down.n)};
  const auto count = static_cast<int64_t>(busy.size());
  if (products != Products::kDown) {
    run.inputs = RoundInputs(p, busy, run.hidden, pool);
    const int64_t work =
        cpu::WorkOf(w.gate, p.offsets.back()) + cpu::WorkOf(w.up, p.offsets.back());
    cpu::RunFromBothEnds(pool, count * CeilDiv(run.width, run.middle_columns), work,
                         [&](int64_t task, int64_t next) { run.Middle(task, next); });
  }
  if (products == Products::kGateUp) return;
  run.middle = RoundIntermediate(p, busy, run.width, pool);
  cpu::RunFromBothEnds(pool, count * CeilDiv(run.hidden, run.down_columns),
                       cpu::WorkOf(w.down, p.offsets.back()),
                       [&](int64_t task, int64_t next) { run.Down(task, next); });
}

}  // namespace

void GroupedMlp(const GroupedMlpParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::GroupedMlp(p);
  RunProducts(p, *kernels, Products::kBoth, pool);
}

void GroupedGateUp(const GroupedMlpParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::GroupedGateUp(p);
  RunProducts(p, *kernels, Products::kGateUp, pool);
}

void GroupedDown(const GroupedMlpParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::GroupedDown(p);
  RunProducts(p, *kernels, Products::kDown, pool);
}

}  // namespace switchyard::kernels
