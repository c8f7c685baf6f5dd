#include "engine/scheduler/batch.h"

#include <algorithm>

#include "core/check.h"
#include "core/hash.h"
#include "engine/speculative/draft_tree.h"

namespace switchyard {

namespace {

int32_t SlotOf(const Sequence& sequence, int64_t position, int32_t page_size) {
  return sequence.cache.pages[position / page_size] * page_size +
         static_cast<int32_t>(position % page_size);
}

// Adds the rows of the last token and of a tree of drafts. Rows that follow each other share a
// span. The first span is the leftmost path, whose keys are all in the pages.
void AddTree(const ScheduledRows& part, int32_t page_size, ForwardBatch& batch,
             BranchSpans& spans) {
  const Sequence& s = *part.sequence;
  const DraftTree tree{s.drafts, s.draft_parents};
  CHECK_EQ(part.rows, tree.rows());
  const std::vector<int32_t> depths = tree.Depths();
  const auto row_begin = static_cast<int32_t>(batch.num_tokens());
  const auto root = static_cast<int32_t>(s.computed);
  for (int32_t row = 0; row < tree.rows(); ++row) {
    batch.tokens.push_back(row == 0 ? s.tokens[root] : s.drafts[row - 1]);
    batch.token_rows.push_back(-1);
    batch.positions.push_back(root + depths[row]);
    batch.slots.push_back(SlotOf(s, root + row, page_size));
    batch.logit_rows.push_back(row_begin + row);
  }
  for (int32_t first = 0, end = 0; first < tree.rows(); first = end) {
    for (end = first + 1; end < tree.rows() && tree.ParentOf(end) == end - 1;) ++end;
    std::vector<int32_t> slots;
    if (first > 0) {
      for (const int32_t row : tree.PathTo(end - 1))
        if (row > 0) slots.push_back(batch.slots[row_begin + row]);
    }
    spans.Add({.row_begin = row_begin + first,
               .rows = end - first,
               .kv_len = root + depths[end - 1] + 1,
               .pages = s.cache.pages.data(),
               .branch_begin = root + 1},
              slots);
    batch.request_ids.push_back(s.request.id);
  }
}

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
    batch.slots.push_back(SlotOf(sequence, position, page_size));
  }
  batch.sequences.push_back({.row_begin = row_begin,
                             .rows = static_cast<int32_t>(part.rows),
                             .kv_len = static_cast<int32_t>(end),
                             .pages = pages.data()});
  if (sequence.cache.states.next >= 0)
    batch.states.push_back(KvCache::SpanOf(sequence.cache, sequence.computed, row_begin,
                                           static_cast<int32_t>(part.rows)));
  batch.request_ids.push_back(sequence.request.id);
  const Range wanted = sequence.LogitRows(part.rows);
  for (int64_t position = wanted.begin; position < wanted.end; ++position)
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
  batch.branch_slots.clear();
  batch.states.clear();
  batch.request_ids.clear();
  batch.logit_rows.clear();
  batch.decode_tokens = 0;
  batch.routed_experts = false;
  BranchSpans branches(batch);
  for (const ScheduledRows& part : plan) {
    const Sequence& sequence = *part.sequence;
    if (sequence.decoding()) {
      CHECK_EQ(batch.decode_tokens, batch.num_tokens());  // decode rows come first
      batch.decode_tokens += part.rows;
    }
    batch.routed_experts |= sequence.routed_experts_pending();
    if (sequence.decoding() && !sequence.draft_parents.empty()) {
      AddTree(part, page_size, batch, branches);
    } else {
      AddRows(part, page_size, batch);
    }
  }
  branches.Finish();
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
    if (sequence.branch != nullptr)
      hash.Add(std::span(sequence.branch, sequence.kv_len - sequence.branch_begin));
  }
  for (const kernels::StateSpan& states : batch.states) {
    hash.Add(static_cast<uint32_t>(states.from));
    hash.Add(static_cast<uint32_t>(states.to));
    hash.Add(static_cast<uint32_t>(states.chunked));
    for (const auto& copy : states.copies) {
      hash.Add(static_cast<uint32_t>(copy.rows));
      hash.Add(static_cast<uint32_t>(copy.slot));
    }
  }
  return hash.value();
}

}  // namespace switchyard
