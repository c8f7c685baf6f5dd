#include "schedule/print.h"

#include <fmt/format.h>

#include <algorithm>

#include "schedule/exchanges.h"

namespace switchyard::schedule {
namespace {

std::string Title(const StepShape& s) {
  const auto moe = std::ranges::count(s.experts, true);
  std::string title =
      fmt::format("{} micro-batches through {} layers ({} with experts), {}", s.micro_batches,
                  s.layers(), moe, s.order == Order::kPlain ? "plain" : "overlapped");
  if (s.stages > 1) title += fmt::format(", stage {} of {}", s.stage, s.stages);
  return title;
}

// "2: layer 1 experts", "2: send"
std::string Cell(const StepShape& shape, const Operation& o) {
  std::string cell;
  if (o.micro_batch != Operation::kNone) cell = fmt::format("{}: ", o.micro_batch);
  const bool phase = o.kind == Kind::kForward || o.kind == Kind::kBackward;
  if (!phase) cell += Name(o.kind);
  if (o.kind == Kind::kSumGradients) {
    return cell + (o.layer == Operation::kNone
                       ? std::string(", the rest")
                       : fmt::format(", layer {}", shape.first_layer + o.layer));
  }
  if (phase) cell += fmt::format("layer {} {}", shape.first_layer + o.layer, Name(o.phase));
  return cell;
}

enum class Column : uint8_t { kForward, kBackward, kOnce };

Column ColumnOf(Kind kind) {
  switch (kind) {
    case Kind::kBegin:
    case Kind::kReceive:
    case Kind::kForward:
    case Kind::kSend:
    case Kind::kHeads:
      return Column::kForward;
    case Kind::kReceiveGradient:
    case Kind::kBackward:
    case Kind::kSendGradient:
      return Column::kBackward;
    case Kind::kSumGradients:
    case Kind::kAwaitSums:
      break;
  }
  return Column::kOnce;
}

}  // namespace

std::string PrintSchedule(const StepShape& shape, std::span<const Operation> list) {
  std::string text = fmt::format("{}: {} operations\n", Title(shape), list.size());
  text += fmt::format("{:>5}  {:<22} {:<22} {}\n", "", "forward", "backward", "rows in flight");
  ExchangesInFlight exchanges;
  for (size_t i = 0; i < list.size(); ++i) {
    exchanges.Apply(list[i]);
    const std::string cell = Cell(shape, list[i]);
    const Column column = ColumnOf(list[i].kind);
    const std::string forth = column != Column::kBackward ? cell : "";
    const std::string back = column == Column::kBackward ? cell : "";
    std::string line = fmt::format("{:>5}  {:<22} {:<22} {}", i, forth, back, exchanges.Describe());
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string PrintSchedule(const StepShape& shape) { return PrintSchedule(shape, Plan(shape)); }

}  // namespace switchyard::schedule
