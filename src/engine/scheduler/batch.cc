#include "engine/scheduler/batch.h"

#include <algorithm>

#include "core/check.h"
#include "core/hash.h"

namespace switchyard {

namespace {

void AddRows(const ScheduledRows& part, int32_t page_size, ForwardBatch& batch) {
  const Sequence& sequence = *part.sequence;
  const auto& pages = sequence.cache.pages;
  const int64_t end = sequence.computed + part.rows;
  CHECK_LE(end, static_cast<int64_t>(pages.size()) * page_size);
  const auto row_begin = static_cast<int32_t>(batch.num_tokens());
  for (int64_t position = sequence.computed; position < end; ++position) {
    const bool draft = position >= sequence.length();
    batch.tokens.push_back(draft ? sequence.drafts[position - sequence.length()]
                                 : sequence.tokens[position]);
    batch.token_rows.push_back(draft || position < sequence.known_length() ? -1
                                                                           : sequence.unknown_row);
    batch.positions.push_back(static_cast<int32_t>(position));
    batch.slots.push_back(pages[position / page_size] * page_size +
                          static_cast<int32_t>(position % page_size));
  }
  batch.sequences.push_back({.row_begin = row_begin,
                             .rows = static_cast<int32_t>(part.rows),
                             .kv_len = static_cast<int32_t>(end),
                             .pages = pages.data()});
  batch.request_ids.push_back(sequence.request.id);
  const Sequence::RowRange wanted = sequence.LogitRows(part.rows);
  for (int64_t position = wanted.first; position < wanted.end; ++position)
    batch.logit_rows.push_back(row_begin + static_cast<int32_t>(position - sequence.computed));
}

// The bytes of numbers, lowest first, so that the fingerprint does not depend on the machine.
class NumberHash {
 public:
  void Add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) hash_.AddUnit(value & 0xff);
  }
  void Add(std::span<const int32_t> values) {
    Add(values.size());
    for (const int32_t value : values) Add(static_cast<uint32_t>(value));
  }
  uint64_t value() const { return hash_.value(); }

 private:
  Fnv1a hash_;
};

}  // namespace

void BuildBatch(std::span<const ScheduledRows> plan, int32_t page_size, ForwardBatch& batch) {
  batch.tokens.clear();
  batch.token_rows.clear();
  batch.positions.clear();
  batch.slots.clear();
  batch.sequences.clear();
  batch.request_ids.clear();
  batch.logit_rows.clear();
  batch.decode_tokens = 0;
  batch.routed_experts = false;
  for (const ScheduledRows& part : plan) {
    const Sequence& sequence = *part.sequence;
    if (sequence.decoding()) {
      CHECK_EQ(batch.decode_tokens, batch.num_tokens());  // decode rows come first
      batch.decode_tokens += part.rows;
    }
    batch.routed_experts |= sequence.routed_experts_pending();
    AddRows(part, page_size, batch);
  }
  if (std::ranges::all_of(batch.token_rows, [](int32_t row) { return row < 0; }))
    batch.token_rows.clear();
}

uint64_t Fingerprint(const ForwardBatch& batch, int32_t page_size) {
  NumberHash hash;
  hash.Add(batch.tokens);
  hash.Add(batch.token_rows);
  hash.Add(batch.positions);
  hash.Add(batch.slots);
  hash.Add(batch.logit_rows);
  hash.Add(static_cast<uint64_t>(batch.decode_tokens));
  hash.Add(batch.routed_experts ? 1 : 0);
  for (const auto& sequence : batch.sequences) {
    hash.Add(static_cast<uint32_t>(sequence.row_begin));
    hash.Add(static_cast<uint32_t>(sequence.rows));
    hash.Add(static_cast<uint32_t>(sequence.kv_len));
    const size_t pages = (sequence.kv_len + page_size - 1) / page_size;
    hash.Add(std::span(sequence.pages, pages));
  }
  return hash.value();
}

}  // namespace switchyard
