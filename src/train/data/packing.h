// Packs documents into rows of a fixed length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/batch.h"
#include "train/data/encode.h"

namespace switchyard::train {

struct PackingOptions {
  int64_t length = 512;  // maximum tokens of a row
  // false: rows are filled completely, and a document is split where a row ends. true: a document
  // that fits in a row is not split, because the second part of a split chat would lack its
  // beginning. Rows may then be shorter than `length`.
  bool whole_documents = false;
  bool shuffle = true;
  uint64_t seed = 0;
};

// Tokens [begin, begin + length) of a document. The target of each token is its successor, so the
// token at begin + length exists too; it is the first token of the next part. So every token of a
// document except its first one is a target exactly once.
struct Part {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;

  bool operator==(const Part&) const = default;
};

using Row = std::vector<Part>;  // the parts of one row; at most the row length in total

// The rows of one epoch in training order: a function only of the documents' lengths, the options
// and the epoch number. Documents are shuffled and packed in this order. A whole document goes into
// the row with the least remaining space that suffices. Then the rows are shuffled. Documents of
// fewer than two tokens are dropped. Deterministic on every machine.
std::vector<Row> PackEpoch(std::span<const int64_t> document_lengths, const PackingOptions& options,
                           int64_t epoch);

// Appends a row's tokens and targets; each part becomes a sequence.
void AppendRow(const std::vector<EncodedDocument>& documents, const Row& row, Batch* batch);

}  // namespace switchyard::train
