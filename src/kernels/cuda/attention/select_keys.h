// Selection of keys and entries by an index on a GPU, and the sequences of selected keys.
// Semantics: kernels/ops.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/compressed.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/ops.h"

namespace switchyard::cuda {

// Enqueues the kernels and returns. Ignores `sequences` and `page_size` of `p`, because `table` has
// them. A row with at most topk keys gets the slots of all its keys, so that SelectedSequences
// covers all rows. Rows that belong to no sequence are not written.
//
// `exact`: float32 products of unrounded inputs. Otherwise tensor cores are used if the cache is
// kBF16 and head_dim is a multiple of 16. q is then rounded to bfloat16; q and the cache must be
// aligned to 16 bytes.
//
// `scratch`: device memory for the scores, aligned to 16 bytes, at least 4 bytes for each key of
// the longest sequence that `table` can have. Rows are processed in waves of as many rows as fit.
//
// The score of a key depends only on `exact`, the row's query and weights, and the key.
void SelectKeys(const kernels::SelectKeysParams& p, const SequenceTable& table, bool exact,
                cudaStream_t stream, std::span<std::byte> scratch);

// Enqueues the kernels and returns; ignores `sequences` and `page_size` of `p`. A row with at most
// topk keys gets the slots of all its keys. Rows that belong to no sequence are neither read nor
// written. `scratch`: device memory, aligned to 4 bytes, at least 4 bytes for each row.
void InheritKeys(const kernels::InheritKeysParams& p, const SequenceTable& table,
                 cudaStream_t stream, std::span<std::byte> scratch);

// As SelectKeys, for entries (kernels/compressed.h): their numbers are stored. Tensor cores are
// used under the same conditions, if the places are also aligned to 16 bytes. `scratch` needs 4
// bytes for each entry of the longest sequence.
void SelectEntries(const kernels::SelectEntriesParams& p, const SequenceTable& table, bool exact,
                   cudaStream_t stream, std::span<std::byte> scratch);

// Tables in which each row of a batch is a sequence of its own, for attention to selected keys. A
// table has at most kSelectedRows rows, because each block of attention reads the whole table.
constexpr int32_t kSelectedRows = 1024;
constexpr size_t SelectedSequencesBytes(int32_t num_rows) { return size_t{16} * num_rows; }
// Enqueues a kernel that fills the columns of all these tables in `memory`, which has
// SelectedSequencesBytes(table.num_rows) bytes. Kernels that read them must not be launched early,
// because the columns change with each call.
void FillSelectedSequences(const SequenceTable& table, int64_t topk, std::byte* memory,
                           cudaStream_t stream);
// The table of the rows from `first` on, a multiple of kSelectedRows, with row `first` as row 0.
// Its pages are single keys: those in `selected` [table.num_rows, topk], the result of SelectKeys.
SequenceTable SelectedSequences(const SequenceTable& table, const int32_t* selected, int64_t topk,
                                const std::byte* memory, int32_t first);

}  // namespace switchyard::cuda
