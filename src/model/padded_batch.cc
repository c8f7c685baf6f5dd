#include "model/padded_batch.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace switchyard {
namespace {

int64_t Largest(const std::vector<int64_t>& of_groups, int64_t own) {
  return of_groups.empty() ? own : std::ranges::max(of_groups);
}

int64_t LargestGroup(const ForwardBatch& batch) {
  return Largest(batch.group_tokens, batch.num_tokens());
}

}  // namespace

int64_t PaddedTokens(int64_t tokens) {
  if (tokens <= 2) return std::max<int64_t>(1, tokens);
  if (tokens <= 4) return 4;
  const int64_t step = tokens <= 64 ? 8 : tokens <= 256 ? 16 : 64;
  return CeilDiv(tokens, step) * step;
}

bool IsDecode(const ForwardBatch& batch) {
  return batch.group_tokens.empty() ? batch.num_tokens() == batch.decode_tokens
                                    : batch.group_tokens == batch.group_decode_tokens;
}

bool HasAllLogits(const ForwardBatch& batch) {
  return batch.group_tokens.empty() ? std::ssize(batch.logit_rows) == batch.num_tokens()
                                    : batch.group_logit_rows == batch.group_tokens;
}

bool IsPlainDecode(const ForwardBatch& batch, int64_t most) {
  const int64_t largest = LargestGroup(batch);
  if (largest == 0 || PaddedTokens(largest) > most) return false;
  // A group that returns its experts' ids runs unpadded. Then no group may pad, because all groups
  // must use the same sizes.
  if (batch.routed_experts || batch.groups_want_routed_experts) return false;
  return IsDecode(batch);
}

const ForwardBatch& PaddedBatch::Pad(const ForwardBatch& batch, int64_t spare_page,
                                     int32_t page_size, bool states) {
  const int64_t rows = PaddedTokens(LargestGroup(batch));
  const bool all_logits = HasAllLogits(batch);
  const int64_t some = PaddedTokens(Largest(batch.group_logit_rows, std::ssize(batch.logit_rows)));
  const int64_t logit_rows = all_logits ? rows : std::min(rows, some);
  page_ = static_cast<int32_t>(spare_page);
  padded_ = batch;
  padded_.tokens.resize(rows, 0);
  if (!batch.token_rows.empty()) padded_.token_rows.resize(rows, -1);
  padded_.positions.resize(rows, 0);
  padded_.slots.resize(rows, page_ * page_size);
  for (int64_t row = batch.num_tokens(); row < rows; ++row)
    padded_.sequences.push_back(
        {.row_begin = static_cast<int32_t>(row), .rows = 1, .kv_len = 1, .pages = &page_});
  while (std::ssize(padded_.sequences) < rows)
    padded_.sequences.push_back(
        {.row_begin = static_cast<int32_t>(rows), .rows = 0, .kv_len = 0, .pages = &page_});
  if (states) {
    for (size_t i = batch.sequences.size(); i < padded_.sequences.size(); ++i) {
      const kernels::SequenceSpan& sequence = padded_.sequences[i];
      padded_.states.push_back({.row_begin = sequence.row_begin, .rows = sequence.rows});
    }
  } else {
    padded_.states.clear();  // a pipeline stage without recurrent layers
  }
  if (batch.hidden != nullptr) padded_.hidden_rows.resize(rows, 0);
  if (all_logits) {
    padded_.logit_rows.resize(rows);
    std::iota(padded_.logit_rows.begin(), padded_.logit_rows.end(), 0);
  } else {
    padded_.logit_rows.resize(logit_rows, static_cast<int32_t>(rows - 1));
  }
  padded_.decode_tokens = rows;
  for (auto* counts : {&padded_.group_tokens, &padded_.group_decode_tokens})
    std::ranges::fill(*counts, rows);
  std::ranges::fill(padded_.group_logit_rows, logit_rows);
  return padded_;
}

}  // namespace switchyard
