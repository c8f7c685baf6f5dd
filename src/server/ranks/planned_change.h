// A planned change of the ranks, and its outcome.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "server/front/rank_weights.h"
#include "server/ranks/engine_ranks.h"

namespace switchyard {

// Either new ranks (another layout, or other weights), a restart of some of the present ranks, or
// the release or return of their memory. Plain value.
struct PlannedChange {
  std::string what;  // for log and errors: "the restart of rank 1"
  // Ranks to restart. The ranks of one list restart together in one pause; the lists are processed
  // in order.
  std::vector<std::vector<int>> rounds;
  std::shared_ptr<RankLayout> layout;  // of the new ranks; null: a restart
  // True: the new ranks load while the present ranks serve, which needs memory for both. False: the
  // present ranks end first.
  bool beside = false;
  // Open requests end before the ranks end, and requests that arrive meanwhile wait. `aborts`: they
  // are aborted. Requests that already wait because memory is released are not drained.
  bool drains = false, aborts = false;
  // Called when the new ranks have loaded, before requests are sent to them; may be empty. If the
  // ranks have ended for a release, it is called as soon as `layout` is the one that will load.
  std::function<void()> on_switched;
  // Memory to release, or to give back with `resumes`. For the cache alone, `rounds` has one list:
  // the ranks that end because their cache is private. The other ranks keep their weights. The list
  // has no effect with Supervisor::Options::ranks_free_cache.
  MemoryTags memory;
  bool resumes = false;
};

struct ChangeOutcome {
  // Empty on success. After an error, the previous layout serves again, or the server ends.
  std::string error;
  ErrorKind kind = ErrorKind::kPeer;
  std::vector<double> pauses;  // each: seconds without serving ranks
  double seconds = 0;          // duration of the whole change
  size_t waiting = 0;          // requests that were waiting at the end of the change
  MemoryTags released;         // the memory that is released after the change
};

}  // namespace switchyard
