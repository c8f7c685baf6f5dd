// A planned change of the ranks, and its outcome.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "server/ranks/rank_layout.h"

namespace switchyard {

// Either new ranks in another layout, or a restart of some of the present ranks. Plain value.
struct PlannedChange {
  std::string what;  // for log and errors: "the restart of rank 1"
  // Ranks to restart. The ranks of one list restart together in one pause; the lists are processed
  // in order.
  std::vector<std::vector<int>> rounds;
  std::shared_ptr<RankLayout> layout;  // of the new ranks; null: a restart
  // True: the new ranks load while the present ranks serve, which needs memory for both. False: the
  // present ranks end first.
  bool beside = false;
};

struct ChangeOutcome {
  // Empty on success. After an error, the previous layout serves again, or the server ends.
  std::string error;
  ErrorKind kind = ErrorKind::kPeer;
  std::vector<double> pauses;  // each: seconds without serving ranks
  double seconds = 0;          // duration of the whole change
};

}  // namespace switchyard
