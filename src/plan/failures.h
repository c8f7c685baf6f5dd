// Ends of ranks in a simulation, and how the engine recovers (docs/elastic.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/search.h"

namespace switchyard::plan {

// The process of a rank ends.
struct RankFailure {
  int64_t rank = 0;  // of the cluster: engine · ranks of an engine + rank of the engine
  double seconds = 0;
};

struct FailureOptions {
  std::vector<RankFailure> listed;  // --fail
  double per_day = 0;               // --fail-rate: ends of each rank per day, at random times
  uint64_t seed = 0;
  double restart_seconds = 0;  // --restart-seconds; 0: an estimate (RecoveryOf)

  bool enabled() const { return !listed.empty() || per_day > 0; }
};

// Reads RANK@SECONDS. Error kInvalid names --fail.
RankFailure ParseFailure(const std::string& text);

// The listed failures and the random ones before `end`, by engine, in order of time; those of equal
// time in order of rank. Listed ones may be later than `end`. Error kInvalid for a rank outside the
// cluster, and for more than 10^9 random failures.
std::vector<std::vector<RankFailure>> FailuresOf(const FailureOptions& options, int engines,
                                                 int ranks, double end);

// How the ranks of an engine recover.
struct Recovery {
  bool serves_without = false;  // --elastic-ep-backend mooncake
  bool keeps_cache = false;     // the KV cache outlives the rank
  double load_seconds = 0;      // from the end of a rank until a new one has loaded
  double settle_seconds = 0;    // of an epoch in which no rank loads
  double load_rate = 0;         // bytes per second that a rank loads
};

// On CPUs, the other ranks keep their weights, and the cache stays, unless the model has recurrent
// states. On GPUs all ranks start again, at the same time. Without `restart_seconds`, a rank starts
// in the time measured in docs/elastic.md, and loads its weights with kLoadRate.
constexpr double kLoadRate = 2e9;
Recovery RecoveryOf(const FailureOptions& options, const Question& question,
                    const Evaluation& layout);

// Figures of all engines.
struct FailureFigures {
  int64_t failures = 0;
  double pause_seconds = 0, longest_pause = 0;  // in which an engine runs no steps
  double aborted_seconds = 0;                   // of steps in progress
  int64_t redone_rows = 0;                      // rows that were computed again
  double absent_seconds = 0;                    // of ranks, while others serve
};

}  // namespace switchyard::plan
