#include "schedule/constraints.h"

#include <fmt/format.h>

#include <map>

namespace switchyard::schedule {

Operation Constraints::Add(const Operation& operation) {
  operations_.insert(operation);
  return operation;
}

Operation Constraints::After(const Operation& previous, const Operation& next) {
  Before(previous, next);
  return Add(next);
}

void Constraints::Between(const Operation& first, const Operation& operation,
                          const Operation& last) {
  After(first, operation);
  Before(operation, last);
}

void Constraints::Before(const Operation& first, const Operation& last) {
  order_.emplace_back(first, last);
}

std::string Constraints::FindError(std::span<const Operation> list, int first_layer) const {
  const auto describe = [&](const Operation& o) { return Describe(o, first_layer); };
  std::map<Operation, size_t> at;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!operations_.contains(list[i])) {
      return fmt::format("operation {}, {}, is not part of this step", i, describe(list[i]));
    }
    if (!at.emplace(list[i], i).second) {
      return fmt::format("operations {} and {} are the same: {}", at[list[i]], i,
                         describe(list[i]));
    }
  }
  for (const Operation& operation : operations_) {
    if (!at.contains(operation)) return fmt::format("{} is missing", describe(operation));
  }
  for (const auto& [first, last] : order_) {
    if (at.at(first) > at.at(last)) {
      return fmt::format("{} comes before {}", describe(last), describe(first));
    }
  }
  return {};
}

}  // namespace switchyard::schedule
