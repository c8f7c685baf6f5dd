// The constraints of a step on its schedule: its operations, and which of them must run before
// which.
#pragma once

#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schedule/operation.h"

namespace switchyard::schedule {

// A value type. Used by one thread at a time.
class Constraints {
 public:
  // Requires the operation exactly once. Returns it.
  Operation Add(const Operation& operation);
  // Requires `next` exactly once, at any position after `previous`. Returns `next`.
  Operation After(const Operation& previous, const Operation& next);
  // Requires `operation` exactly once, at any position between `first` and `last`.
  void Between(const Operation& first, const Operation& operation, const Operation& last);
  // Orders two operations without requiring them. Add or After must also be called for each of
  // them.
  void Before(const Operation& first, const Operation& last);

  // Returns the first fault of a list, or an empty string. `first_layer` is added to the layer
  // numbers in the text.
  std::string FindError(std::span<const Operation> list, int first_layer) const;

 private:
  std::set<Operation> operations_;
  std::vector<std::pair<Operation, Operation>> order_;
};

}  // namespace switchyard::schedule
