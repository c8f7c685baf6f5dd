// Two-batch overlap: splits a batch into two micro-batches. Each one computes while the rows of the
// other are exchanged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/forward_batch.h"

namespace switchyard {

// When a batch is split, and where.
struct SplitLimits {
  double threshold = 0.48;  // --tbo-token-distribution-threshold
  int64_t min_rows = 2;     // minimum rows for a split, summed over groups (--tbo-min-tokens)
  int64_t max_in_one = 0;   // a batch with more rows in one group is always split; 0: no limit
};

// Number of rows of each attention group [dp] in the first micro-batch; the second one has the
// other rows. Empty if the batch is not split, because it has few rows, or because the second
// micro-batch would have no row in any group. All ranks get equal results from the counts of all
// groups.
//
// The first micro-batch gets half of the rows. With one attention group, a batch with prompts is
// split between two sequences, near the half, if each part then has at least `threshold` of the
// rows. Otherwise the split may be within a sequence. The result is still exact: in each layer, the
// first part stores its keys before the second part attends to them.
std::vector<int64_t> SplitRows(const ForwardBatch& batch, const SplitLimits& limits);

// Maximum rows of a micro-batch per group, if the batch has up to `max_rows` rows per group.
int64_t MaxMicroBatchRows(int64_t max_rows, double threshold);

// Rows [begin, end) of `batch`, for a micro-batch with `group_rows` [dp] rows in each group, of
// which `group_decode_rows` decode. It has the logit rows of this group only, because the head runs
// once for the whole batch. Borrows the page tables.
ForwardBatch SliceBatch(const ForwardBatch& batch, int64_t begin, int64_t end,
                        std::span<const int64_t> group_rows,
                        std::span<const int64_t> group_decode_rows);

// Both micro-batches, with first_rows = SplitRows(batch, …). `group`: this rank's attention group.
struct MicroBatches {
  MicroBatches(const ForwardBatch& batch, std::span<const int64_t> first_rows, int group);
  ForwardBatch first, second;
};

}  // namespace switchyard
