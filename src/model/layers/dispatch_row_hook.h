// Writes rows into an exchange's buffer as they are computed.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "moe/backend.h"
#include "moe/rows.h"

namespace switchyard {

// Converts each row that a norm produces to the dispatch format and stores it, so that the MoE
// layer need not read the row again.
struct DispatchRowHook final : kernels::RowHook {
  DispatchRowHook(MoeInputBuffer buffer, int64_t width) : to(buffer), hidden(width) {}

  void OnRowWritten(int64_t row, const float* y) const override {
    if (row < to.tokens.begin || row >= to.tokens.end) return;
    StoreRow(to.format, y, hidden, to.rows + (row - to.tokens.begin) * to.format.Bytes(hidden));
  }

  const MoeInputBuffer to;
  const int64_t hidden;
};

}  // namespace switchyard
