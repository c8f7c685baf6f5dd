// Decode batches of a few sizes, so that a recorded pass fits the next batch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace switchyard {

// The sizes that batches are padded to: 1, 2, 4, then multiples of 8 to 64, of 16 to 256, of 64
// beyond. At least `tokens`.
int64_t PaddedTokens(int64_t tokens);

// Whether every attention group of the batch decodes, and wants the logits of every row, no more
// than `most` rows, and no experts' ids: what a recorded pass computes. The same in every group.
bool IsPlainDecode(const ForwardBatch& batch, int64_t most);

// The batch filled up with rows of no sequence: token 0 at position 0, key and value in the page
// after the cache's last. In every group the same number of rows, a size of PaddedTokens; all ranks
// come to the same one. Reused from step to step.
class PaddedBatch {
 public:
  // `batch` is plain decode and lives as long as what this returns is used.
  const ForwardBatch& Pad(const ForwardBatch& batch, int64_t spare_page, int32_t page_size);

 private:
  ForwardBatch padded_;
  int32_t page_ = 0;  // of the rows that fill up
};

}  // namespace switchyard
