#include "train/data/corpus.h"

#include <fmt/format.h>

#include <string_view>

#include "core/error.h"
#include "core/hash.h"

namespace switchyard::train {
namespace {

template <typename T>
void AddTo(Fnv1a& hash, std::span<const T> values) {
  hash.AddBytes(values.data(), values.size_bytes());
}

std::string Fingerprint(const std::vector<EncodedDocument>& documents,
                        const PackingOptions& options) {
  Fnv1a hash;
  for (const EncodedDocument& document : documents) {
    const auto count = static_cast<int64_t>(document.ids.size());
    hash.AddBytes(&count, sizeof count);
    AddTo(hash, std::span(document.ids));
    AddTo(hash, std::span(document.learned));
  }
  return fmt::format("{:016x}-length{}-{}-{}{}", hash.value(), options.length,
                     options.whole_documents ? "whole" : "cut",
                     options.shuffle ? "seed" : "in-order",
                     options.shuffle ? std::to_string(options.seed) : "");
}

int64_t Cut(int64_t total, int64_t index, int64_t parts) { return total * index / parts; }

}  // namespace

Corpus::Corpus(std::vector<EncodedDocument> documents, const PackingOptions& options)
    : documents_(std::move(documents)), options_(options) {
  if (options_.length < 1) throw Invalid("--length {}: want at least 1", options_.length);
  for (const EncodedDocument& document : documents_) {
    lengths_.push_back(static_cast<int64_t>(document.ids.size()));
    for (size_t i = 1; i < document.ids.size(); ++i) targets_ += document.learned[i] != 0 ? 1 : 0;
    if (!document.ids.empty()) tokens_ += lengths_.back() - 1;
  }
  if (targets_ == 0) {
    throw Invalid("the corpus is empty: its {} documents have {} tokens, none of which is a target",
                  documents_.size(), tokens_);
  }
  fingerprint_ = Fingerprint(documents_, options_);
}

const std::vector<Row>& Corpus::Epoch(int64_t epoch) {
  if (epoch != packed_epoch_) {
    rows_ = PackEpoch(lengths_, options_, epoch);
    packed_epoch_ = epoch;
  }
  return rows_;
}

std::vector<Row> Corpus::Take(int64_t count, SamplePosition* position) {
  std::vector<Row> out;
  while (static_cast<int64_t>(out.size()) < count) {
    const std::vector<Row>& rows = Epoch(position->epoch);
    if (position->row >= static_cast<int64_t>(rows.size())) {
      *position = {position->epoch + 1, 0};
      continue;
    }
    out.push_back(rows[static_cast<size_t>(position->row++)]);
  }
  return out;
}

RowRange RowsOfMicroBatch(int64_t rows, int64_t index, int64_t count, int rank, int ranks) {
  const int64_t begin = Cut(rows, index, count), size = Cut(rows, index + 1, count) - begin;
  return {begin + Cut(size, rank, ranks), begin + Cut(size, rank + 1, ranks)};
}

}  // namespace switchyard::train
