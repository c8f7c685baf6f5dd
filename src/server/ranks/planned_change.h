// A planned change of the ranks, and its outcome.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "server/ranks/rank_layout.h"

namespace switchyard {

// Either other ranks, or a restart of some of the present ones. Plain value.
struct PlannedChange {
  std::string what;  // for log and errors: "the restart of rank 1"
  // Ranks to restart: one pause for each list, one list after another.
  std::vector<std::vector<int>> rounds;
  std::shared_ptr<RankLayout> layout;  // of the other ranks; null: a restart
  // The other ranks load while the present ones serve, which needs memory for both. Otherwise the
  // present ones end first.
  bool beside = false;
};

struct ChangeOutcome {
  std::string error;  // empty: done. Otherwise the ranks serve as before, or the server ends
  ErrorKind kind = ErrorKind::kPeer;
  std::vector<double> pauses;  // seconds without ranks
  double seconds = 0;          // of the whole change
};

}  // namespace switchyard
