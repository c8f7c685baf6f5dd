// The corpus of a run, and the packing of its tokens into micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/range.h"
#include "train/batch.h"
#include "train/data/encode.h"

namespace switchyard::train {

// Packs documents into rows of a fixed length.

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

// Appends a row's tokens, targets and given experts; each part becomes a sequence. The given
// experts of all documents have the same layers and top_k.
void AppendRow(const std::vector<EncodedDocument>& documents, const Row& row, Batch* batch);

// Endless stream of training rows, one epoch after the other.

// Position in the stream: rows [0, row) of `epoch` have been consumed. A run needs only the
// position to resume at exactly the next row.
struct SamplePosition {
  int64_t epoch = 0;
  int64_t row = 0;

  bool operator==(const SamplePosition&) const = default;
};

// The encoded documents and their packing into rows. Every rank holds all of them in memory.
// Single-threaded.
class Corpus {
 public:
  // Throws Error kInvalid if no row has a target: the corpus is empty, or no token is a target.
  Corpus(std::vector<EncodedDocument> documents, const PackingOptions& options);

  // Returns the next `count` rows from `position` and advances `position`. The rows of one call may
  // span several epochs.
  std::vector<Row> Take(int64_t count, SamplePosition* position);

  // A stable hash of documents and packing. A run may only resume with an equal fingerprint.
  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<EncodedDocument>& documents() const { return documents_; }
  int64_t tokens() const {
    return tokens_;
  }  // tokens of one epoch; each document's last one does not count
  int64_t targets() const { return targets_; }  // of one epoch
  int64_t RowsOf(int64_t epoch) { return static_cast<int64_t>(Epoch(epoch).size()); }

 private:
  const std::vector<Row>& Epoch(int64_t epoch);

  std::vector<EncodedDocument> documents_;
  PackingOptions options_;
  std::vector<int64_t> lengths_;
  std::string fingerprint_;
  int64_t tokens_ = 0, targets_ = 0;
  int64_t packed_epoch_ = -1;
  std::vector<Row> rows_;  // rows of epoch packed_epoch_
};

// Rows [begin, end) of `rows` that data-parallel rank `rank` of `ranks` processes in micro-batch
// `index` of `count`. Rows are partitioned in order, as evenly as possible, first over
// micro-batches and then over ranks. Some ranks may get no rows.
Range RowsOfMicroBatch(int64_t rows, int64_t index, int64_t count, int rank, int ranks);

}  // namespace switchyard::train
