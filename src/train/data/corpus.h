// Endless stream of training rows, one epoch after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/packing.h"

namespace switchyard::train {

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
struct RowRange {
  int64_t begin = 0, end = 0;
};
RowRange RowsOfMicroBatch(int64_t rows, int64_t index, int64_t count, int rank, int ranks);

}  // namespace switchyard::train
