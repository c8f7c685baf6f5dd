// Padding of decode batches to a few sizes, so that recorded passes (CUDA graphs) can be replayed.
#pragma once

#include <cstdint>
#include <vector>

#include "model/forward_batch.h"

namespace switchyard {

// The smallest padded size of at least `tokens`: 1, 2, 4, then multiples of 8 up to 64, of 16 up to
// 256, of 64 beyond.
int64_t PaddedTokens(int64_t tokens);

// Whether every attention group only decodes.
bool IsDecode(const ForwardBatch& batch);

// Whether every attention group has logits of every row.
bool HasAllLogits(const ForwardBatch& batch);

// Whether the pass of this batch may be recorded: every attention group only decodes, no group
// requests routed experts, and no group has more than `most` rows after padding. The result is
// equal in every group.
bool IsPlainDecode(const ForwardBatch& batch, int64_t most);

// A batch with padding rows, which belong to no request: token 0 at position 0, with key and value
// in the page after the cache's last. Every group gets the same number of rows: PaddedTokens of the
// largest group's rows. So the kernel launches of a pass depend only on this number and, if only
// some rows have logits, on the padded number of logit rows. The number of sequences equals the
// number of rows: if sequences with drafts have several rows, empty sequences follow at the end.
// With recurrent states, a padding row has no slots. Reused from step to step.
class PaddedBatch {
 public:
  // `batch` must satisfy IsPlainDecode, and must outlive the use of the result. `states`: the model
  // has recurrent states.
  const ForwardBatch& Pad(const ForwardBatch& batch, int64_t spare_page, int32_t page_size,
                          bool states = false);

 private:
  ForwardBatch padded_;
  int32_t page_ = 0;  // page of the padding rows
};

}  // namespace switchyard
