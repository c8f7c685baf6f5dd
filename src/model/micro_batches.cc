#include "model/micro_batches.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "core/check.h"

namespace switchyard {
namespace {

// [dp] counts of ForwardBatch, which may be empty if there is one group.
std::vector<int64_t> CountsOf(const std::vector<int64_t>& given, int64_t own) {
  return given.empty() ? std::vector<int64_t>{own} : given;
}

}  // namespace

std::vector<int64_t> SplitRows(const ForwardBatch& batch, const SplitLimits& limits) {
  const std::vector<int64_t> rows = CountsOf(batch.group_tokens, batch.num_tokens());
  const std::vector<int64_t> decode = CountsOf(batch.group_decode_tokens, batch.decode_tokens);
  const bool must = limits.max_in_one > 0 && std::ranges::max(rows) > limits.max_in_one;
  if (!must && std::accumulate(rows.begin(), rows.end(), int64_t{0}) < limits.min_rows) return {};
  std::vector<int64_t> first(rows.size());
  for (size_t g = 0; g < rows.size(); ++g) first[g] = (rows[g] + 1) / 2;
  if (first == rows) return {};
  if (rows.size() > 1 || rows == decode) return first;
  const int64_t all = rows[0];
  int64_t nearest = 0;
  for (const kernels::SequenceSpan& s : batch.sequences)
    if (std::abs(2 * int64_t{s.row_begin} - all) < std::abs(2 * nearest - all))
      nearest = s.row_begin;
  const auto smaller = static_cast<double>(std::min(nearest, all - nearest));
  if (nearest > 0 && smaller >= limits.threshold * static_cast<double>(all)) first[0] = nearest;
  return first;
}

int64_t MaxMicroBatchRows(int64_t max_rows, double threshold) {
  // The smaller part has at least `threshold` of the rows. One more row covers rounding.
  const double larger = std::max(0.5, 1.0 - threshold) * static_cast<double>(max_rows);
  return std::min(max_rows, static_cast<int64_t>(larger) + 1);
}

ForwardBatch SliceBatch(const ForwardBatch& batch, int64_t begin, int64_t end,
                        std::span<const int64_t> group_rows,
                        std::span<const int64_t> group_decode_rows) {
  const auto rows_of = [&](const std::vector<int32_t>& values) {
    return std::vector<int32_t>(values.begin() + begin, values.begin() + end);
  };
  CHECK(batch.states.empty());  // CheckOptions refuses two-batch overlap for such models
  ForwardBatch part;
  part.pass = batch.pass;
  part.tokens = rows_of(batch.tokens);
  if (!batch.token_rows.empty()) part.token_rows = rows_of(batch.token_rows);
  part.positions = rows_of(batch.positions);
  part.slots = rows_of(batch.slots);
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const kernels::SequenceSpan& s = batch.sequences[i];
    const int64_t first = std::max<int64_t>(s.row_begin, begin);
    const int64_t last = std::min<int64_t>(s.row_begin + s.rows, end);
    if (first >= last) continue;
    kernels::SequenceSpan& span = part.sequences.emplace_back(s);
    span.row_begin = static_cast<int32_t>(first - begin);
    span.rows = static_cast<int32_t>(last - first);
    // Excludes the keys of the sequence's rows after this part.
    span.kv_len = static_cast<int32_t>(s.kv_len - (s.row_begin + s.rows - last));
    if (!batch.request_ids.empty()) part.request_ids.push_back(batch.request_ids[i]);
  }
  for (const int32_t row : batch.logit_rows)
    if (row >= begin && row < end) part.logit_rows.push_back(row - static_cast<int32_t>(begin));
  part.decode_tokens = std::clamp<int64_t>(batch.decode_tokens - begin, 0, end - begin);
  part.routed_experts = batch.routed_experts;
  part.groups_want_routed_experts = batch.groups_want_routed_experts;
  part.group_tokens.assign(group_rows.begin(), group_rows.end());
  part.group_decode_tokens.assign(group_decode_rows.begin(), group_decode_rows.end());
  part.group_logit_rows.assign(group_rows.size(), std::ssize(part.logit_rows));
  return part;
}

MicroBatches::MicroBatches(const ForwardBatch& batch, std::span<const int64_t> first_rows,
                           int group) {
  const std::vector<int64_t> rows = CountsOf(batch.group_tokens, batch.num_tokens());
  const std::vector<int64_t> decode = CountsOf(batch.group_decode_tokens, batch.decode_tokens);
  CHECK_EQ(first_rows.size(), rows.size());
  std::vector<int64_t> second_rows(rows.size()), first_decode(rows.size()),
      second_decode(rows.size());
  for (size_t g = 0; g < rows.size(); ++g) {
    second_rows[g] = rows[g] - first_rows[g];
    first_decode[g] = std::min(decode[g], first_rows[g]);
    second_decode[g] = decode[g] - first_decode[g];
  }
  const int64_t split = first_rows[group];
  first = SliceBatch(batch, 0, split, first_rows, first_decode);
  second = SliceBatch(batch, split, batch.num_tokens(), second_rows, second_decode);
}

}  // namespace switchyard
