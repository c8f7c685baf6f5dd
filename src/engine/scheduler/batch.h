// From a plan to the arrays that the model reads.
#pragma once

#include <cstdint>
#include <span>

#include "engine/scheduler/scheduler.h"
#include "model/model.h"

namespace switchyard {

// Fills `batch` (cleared first, memory kept; counts of groups are not touched) in the plan's order.
// Sequence spans point into the sequences' page lists, valid until those change.
void BuildBatch(std::span<const ScheduledRows> plan, int32_t page_size, ForwardBatch& batch);

// Equal for equal batches: what ranks compare to find schedulers that have come apart. FNV-1a over
// all fields, pages included.
uint64_t Fingerprint(const ForwardBatch& batch, int32_t page_size);

}  // namespace switchyard
