// Builds the model's input arrays from a plan.
#pragma once

#include <cstdint>
#include <span>

#include "engine/scheduler/scheduler.h"
#include "model/model.h"

namespace switchyard {

// Clears `batch`, then fills it in the plan's order. Keeps its allocations and its counts of
// groups. Sequence spans point into the sequences' page lists and are valid until these lists
// change.
void BuildBatch(std::span<const ScheduledRows> plan, int32_t page_size, ForwardBatch& batch);

// A fingerprint that is equal for equal batches. Ranks compare it to detect diverged schedulers.
// FNV-1a over all fields, pages included.
uint64_t Fingerprint(const ForwardBatch& batch, int32_t page_size);

}  // namespace switchyard
