#include "train/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"

namespace switchyard::train {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), because
// the standard library's distributions differ between platforms.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return MixBits(state_ += kSplitMixStep); }
  // Returns a number in [0, n). Its bias is below n / 2^64, which is negligible for any number of
  // documents.
  uint64_t Below(uint64_t n) { return static_cast<uint64_t>((__uint128_t{Next()} * n) >> 64); }

 private:
  uint64_t state_;
};

template <typename T>
void Shuffle(std::vector<T>* items, Random* random) {
  for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[random->Below(i)]);
}

void PackCut(std::span<const Part> documents, int64_t length, std::vector<Row>* rows) {
  int64_t room = 0;
  for (Part rest : documents) {
    while (rest.length > 0) {
      if (room == 0) {
        rows->emplace_back();
        room = length;
      }
      const int64_t take = std::min(room, rest.length);
      rows->back().push_back({rest.document, rest.begin, take});
      rest.begin += take;
      rest.length -= take;
      room -= take;
    }
  }
}

void PackWhole(std::span<const Part> documents, int64_t length, std::vector<Row>* rows) {
  std::multimap<int64_t, size_t> open;  // remaining space -> row; ties in insertion order
  for (Part rest : documents) {
    while (rest.length > 0) {
      const int64_t take = std::min(length, rest.length);  // longer documents are split
      auto it = open.lower_bound(take);
      size_t row = rows->size();
      int64_t room = length;
      if (it == open.end()) {
        rows->emplace_back();
      } else {
        std::tie(room, row) = *it;
        open.erase(it);
      }
      (*rows)[row].push_back({rest.document, rest.begin, take});
      if (room > take) open.emplace(room - take, row);
      rest.begin += take;
      rest.length -= take;
    }
  }
}

}  // namespace

std::vector<Row> PackEpoch(std::span<const int64_t> document_lengths, const PackingOptions& options,
                           int64_t epoch) {
  CHECK(options.length > 0);
  Random random(options.seed * 0x2545f4914f6cdd1du + static_cast<uint64_t>(epoch));
  std::vector<Part> documents;
  for (size_t i = 0; i < document_lengths.size(); ++i) {
    if (document_lengths[i] < 2) continue;
    documents.push_back({static_cast<int64_t>(i), 0, document_lengths[i] - 1});
  }
  if (options.shuffle) Shuffle(&documents, &random);
  std::vector<Row> rows;
  if (options.whole_documents) {
    PackWhole(documents, options.length, &rows);
  } else {
    PackCut(documents, options.length, &rows);
  }
  if (options.shuffle) Shuffle(&rows, &random);
  return rows;
}

namespace {

// Appends the experts of a part of a document to those of the batch's tokens before the part.
void AppendExperts(const EncodedDocument& document, const Part& part, Batch* batch) {
  const auto before = static_cast<size_t>(batch->begins.back());
  if (document.experts == nullptr) {
    if (before > 0) {
      const size_t width = batch->experts.size() / before;
      batch->experts.resize(width * (before + static_cast<size_t>(part.length)), -1);
    }
    return;
  }
  const std::vector<int32_t>& experts = *document.experts;
  const size_t width = experts.size() / document.ids.size();
  batch->experts.resize(width * before, -1);  // if no document before this one has given experts
  const auto first = experts.begin() + static_cast<ptrdiff_t>(width) * part.begin;
  batch->experts.insert(batch->experts.end(), first,
                        first + static_cast<ptrdiff_t>(width) * part.length);
}

}  // namespace

void AppendRow(const std::vector<EncodedDocument>& documents, const Row& row, Batch* batch) {
  if (batch->begins.empty()) batch->begins.push_back(0);
  for (const Part& part : row) {
    const EncodedDocument& document = documents[static_cast<size_t>(part.document)];
    for (int64_t i = part.begin; i < part.begin + part.length; ++i) {
      const auto next = static_cast<size_t>(i) + 1;
      batch->tokens.push_back(document.ids[static_cast<size_t>(i)]);
      batch->targets.push_back(document.learned[next] != 0 ? document.ids[next] : Batch::kIgnored);
    }
    AppendExperts(document, part, batch);
    batch->begins.push_back(static_cast<int32_t>(batch->tokens.size()));
  }
}

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
    if (document.experts != nullptr) AddTo(hash, std::span(*document.experts));
  }
  return fmt::format("{:016x}-length{}-{}-{}{}", hash.value(), options.length,
                     options.whole_documents ? "whole" : "cut",
                     options.shuffle ? "seed" : "in-order",
                     options.shuffle ? std::to_string(options.seed) : "");
}

int64_t ShareBegin(int64_t total, int64_t index, int64_t parts) { return total * index / parts; }

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

Range RowsOfMicroBatch(int64_t rows, int64_t index, int64_t count, int rank, int ranks) {
  const int64_t begin = ShareBegin(rows, index, count),
                size = ShareBegin(rows, index + 1, count) - begin;
  return {begin + ShareBegin(size, rank, ranks), begin + ShareBegin(size, rank + 1, ranks)};
}

}  // namespace switchyard::train
