// The figures of `bench one-batch --speculative-algorithm`, and their report.
#pragma once

#include <cstdint>
#include <span>

#include "apps/one_batch.h"

namespace switchyard::one_batch {

// Of a case with one number of drafts.
struct DraftFigures {
  Case of;
  int32_t drafts = 0;
  double step = 0, draft = 0, verify = 0;        // seconds
  double tokens = 1;                             // of a sequence in a step
  double target_experts = 0, draft_experts = 0;  // of all layers and passes of a step
  double bytes = 0;                              // of the weights that a step reads
};

// Prints the table, and writes the JSON file if there is one. `figures`: for each case those
// without drafts come first.
void ReportDrafts(const OneBatchArgs& args, const EnginePlan& plan, const Ceilings& ceilings,
                  std::span<const DraftFigures> figures);

}  // namespace switchyard::one_batch
