#include "schedule/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "schedule/verify.h"

namespace switchyard::schedule {
namespace {

std::string Title(const StepShape& s) {
  const auto moe = std::ranges::count(s.experts, true);
  std::string title = fmt::format("{} micro-batches through {} layers ({} with experts), {}",
                                  s.micro_batches, s.layers(), moe, Name(s.order));
  if (s.stages > 1) title += fmt::format(", stage {} of {}", s.stage, s.stages);
  return title;
}

std::string Title(const ServeShape& s) {
  int moe = 0;
  for (int layer = 0; layer < s.range.size(); ++layer) moe += s.moe(layer) ? 1 : 0;
  std::string title =
      fmt::format("{}, {} {} through {} layers ({} with experts)",
                  s.mode == Mode::kPrefill ? "prefill" : "decode", s.micro_batches,
                  s.micro_batches == 1 ? "micro-batch" : "micro-batches", s.range.size(), moe);
  if (s.micro_batches > 1) title += fmt::format(", offset {}", Offset(s));
  return title;
}

// The text of an operation: "layer 5 experts", "layer 5 weights", "send", "sum gradients, the
// rest".
std::string Cell(const Operation& o, int first_layer) {
  if (o.kind == Kind::kForward || o.kind == Kind::kBackward) {
    return fmt::format("layer {} {}", first_layer + o.layer, Name(o.phase));
  }
  if (o.kind == Kind::kWeights)
    return fmt::format("layer {} {}", first_layer + o.layer, Name(o.kind));
  if (o.kind != Kind::kSumGradients) return Name(o.kind);
  if (o.layer == Operation::kNone) return fmt::format("{}, the rest", Name(o.kind));
  return fmt::format("{}, layer {}", Name(o.kind), first_layer + o.layer);
}

// Training has one column for each direction.
std::pair<size_t, std::string> TrainingCell(const Operation& o, int first_layer) {
  std::string cell = Cell(o, first_layer);
  if (o.micro_batch != Operation::kNone) cell = fmt::format("{}: {}", o.micro_batch, cell);
  const bool backward = o.kind == Kind::kReceiveGradient || o.kind == Kind::kBackward ||
                        o.kind == Kind::kSendGradient || o.kind == Kind::kWeights;
  return {backward ? 1 : 0, std::move(cell)};
}

// A line of the table: an index, columns, and the all-to-alls in flight.
std::string Line(const std::string& index, const std::vector<std::string>& cells,
                 const std::string& exchanges) {
  std::string line = fmt::format("{:>5}  ", index);
  for (const std::string& cell : cells) line += fmt::format("{:<22} ", cell);
  line += exchanges;
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

// `cell` returns the column of an operation and the text in that column.
std::string Table(
    const std::string& title, const std::vector<std::string>& columns,
    std::span<const Operation> list,
    const std::function<std::pair<size_t, std::string>(const Operation& operation)>& cell) {
  std::string text = fmt::format("{}: {} operations\n", title, list.size());
  text += Line("", columns, "rows in flight");
  ExchangesInFlight exchanges;
  for (size_t i = 0; i < list.size(); ++i) {
    exchanges.Apply(list[i]);
    std::vector<std::string> cells(columns.size());
    auto [column, described] = cell(list[i]);
    cells[column] = std::move(described);
    text += Line(std::to_string(i), cells, exchanges.Describe());
  }
  return text;
}

}  // namespace

std::string PrintSchedule(const StepShape& shape, std::span<const Operation> list) {
  return Table(Title(shape), {"forward", "backward"}, list,
               [&](const Operation& o) { return TrainingCell(o, shape.first_layer); });
}

std::string PrintSchedule(const ServeShape& shape, std::span<const Operation> list) {
  std::vector<std::string> columns;
  columns.reserve(shape.micro_batches);
  for (int m = 0; m < shape.micro_batches; ++m) columns.push_back(fmt::format("micro-batch {}", m));
  return Table(Title(shape), columns, list, [&](const Operation& o) {
    return std::pair(static_cast<size_t>(o.micro_batch), Cell(o, shape.range.begin));
  });
}

std::string PrintSchedule(const StepShape& shape) { return PrintSchedule(shape, Plan(shape)); }

std::string PrintSchedule(const ServeShape& shape) { return PrintSchedule(shape, Plan(shape)); }

}  // namespace switchyard::schedule
