// The endless stream of rows that a training run learns from, one epoch after the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/packing.h"

namespace switchyard::train {

// How far a run has come: rows [0, row) of `epoch` have been learned. Says all that is needed to
// go on with exactly the next one.
struct SamplePosition {
  int64_t epoch = 0;
  int64_t row = 0;

  bool operator==(const SamplePosition&) const = default;
};

// Encoded documents, whole in memory on every rank, and their packing. Used by one thread.
class Corpus {
 public:
  // Throws Error kInvalid where no row has a target: an empty corpus, or one in which nothing is
  // to be learned.
  Corpus(std::vector<EncodedDocument> documents, const PackingOptions& options);

  // The next `count` rows from `position`, which moves behind them. Rows of one call may come from
  // two epochs or more.
  std::vector<Row> Take(int64_t count, SamplePosition* position);

  // A stable name of documents and packing: a run may go on only with the same.
  const std::string& fingerprint() const { return fingerprint_; }
  const std::vector<EncodedDocument>& documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }    // of one epoch, parts' last targets not counted
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
  std::vector<Row> rows_;  // of packed_epoch_
};

// Row numbers [begin, end) of `rows` that data-parallel rank `rank` of `ranks` computes in
// micro-batch `index` of `count`: rows are dealt out in order, as evenly as they go, first over
// micro-batches and then over ranks. Some may get none.
struct RowRange {
  int64_t begin = 0, end = 0;
};
RowRange RowsOfMicroBatch(int64_t rows, int64_t index, int64_t count, int rank, int ranks);

}  // namespace switchyard::train
