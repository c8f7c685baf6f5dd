// Documents into rows of a fixed length: which part of which document stands where.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/batch.h"
#include "train/data/encode.h"

namespace switchyard::train {

struct PackingOptions {
  int64_t length = 512;  // most tokens of a row
  // false: a row is filled to its last token, documents are cut where it ends. true: a document
  // that fits stays whole (chats lose their beginning otherwise), and rows keep some room.
  bool whole_documents = false;
  bool shuffle = true;
  uint64_t seed = 0;
};

// Tokens [begin, begin + length) of a document, each with its follower as target: the token at
// begin + length exists and begins the next part, so that every token but a document's first is
// the target of exactly one row.
struct Part {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;

  bool operator==(const Part&) const = default;
};

using Row = std::vector<Part>;  // what stands in one row; together at most the row's length

// The rows of one pass over the documents, in the order they are learned: a function of the
// documents' lengths, the options and the number of the epoch alone. Documents are shuffled, packed
// in that order (whole ones into the fullest row with room), then rows are shuffled. Documents of
// fewer than two tokens are left out. Deterministic on every machine.
std::vector<Row> PackEpoch(std::span<const int64_t> document_lengths, const PackingOptions& options,
                           int64_t epoch);

// Appends a row's tokens and targets; each part is a sequence of its own.
void AppendRow(const std::vector<EncodedDocument>& documents, const Row& row, Batch* batch);

}  // namespace switchyard::train
