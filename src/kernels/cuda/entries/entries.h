// Ops of compressed entries on a GPU (semantics: kernels/compressed.h; SelectEntries is in
// attention/select_keys.h). They enqueue the kernels and return.
#pragma once

#include "kernels/compressed.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/launch.h"

namespace switchyard::cuda {

// A launch depends on m, num_sequences and the sizes only. Spans may be padding rows or have no
// rows (kernels/recurrent.h); they leave no state and no entry. Does not use `scratch`.
//
// Each block of rows is computed by itself, from its first row or from the state `from`, in the
// order of CPUs. So bits do not depend on chunks or on the batch. Throws for a width above
// kMaxGpuEntryWidth, and for places that are not kF32, kBF16 or kF16.
void Compress(const kernels::CompressParams& p, cudaStream_t stream);

// Float32 products of unrounded rows, on any GPU. Ignores `sequences` and `page_size` of `p`,
// because `table` has them. Rows that belong to no sequence are not written. Entries have the dtype
// of the cache. A row's bits depend only on its own query, rows, entries and position. Throws as
// Compress does.
void AttendToEntries(const kernels::EntryAttentionParams& p, const SequenceTable& table,
                     cudaStream_t stream);

}  // namespace switchyard::cuda
