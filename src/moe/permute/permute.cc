#include "moe/permute/permute.h"

#include <algorithm>
#include <functional>

#include "core/check.h"
#include "moe/rows.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

// Sets out->x to the dispatched rows as float32, the runners' input type. If the rows are
// contiguous float32 in the receive buffer, out->x points there. Otherwise they are converted to
// out->storage.
void UseRows(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  const int64_t hidden = context.hidden, row_bytes = in.format.Bytes(hidden);
  out->ldx = hidden;
  if (in.format.plain() && !in.row_at && !in.row_places) {
    out->x = reinterpret_cast<const float*>(in.rows);
    return;
  }
  float* x = out->storage.x.Get(in.num_rows * hidden);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      if (in.row_places) {
        LoadRow(in.format, in.row_places[n], hidden, x + n * hidden);
        continue;
      }
      const int64_t at = in.row_at ? in.row_at[n] : n;
      if (at >= 0) {
        LoadRow(in.format, in.rows + at * row_bytes, hidden, x + n * hidden);
      } else {
        RoundRow(in.format, in.own_x + ~at * hidden, hidden, x + n * hidden);
      }
    }
  };
  context.pool.RunRanges(in.num_rows, kRowGrain, std::cref(body));
  out->x = x;
}

// Calls visit(row, slot, local expert) for every (row, slot) whose expert is local, in ascending
// order of rows.
template <typename Visit>
void ForEachOutput(const Dispatched& in, const Visit& visit) {
  for (int64_t n = 0; n < in.num_rows; ++n)
    for (int j = 0; j < in.k; ++j)
      if (const int32_t e = in.topk_ids[n * in.topk_stride + j]; e >= 0) visit(n, j, e);
}

// Computes the offsets of experts: the prefix sum of their counts, each rounded up to the
// alignment.
void AlignOffsets(const PermuteContext& context, std::span<const int32_t> counts,
                  std::vector<int32_t>* offsets) {
  const int alignment = context.expert_alignment;
  offsets->assign(1, 0);
  for (const int32_t count : counts)
    offsets->push_back(offsets->back() +
                       static_cast<int32_t>(CeilDiv(count, alignment)) * alignment);
}

void SortByExpert(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  auto& s = out->storage;
  s.counts.assign(context.num_local_experts, 0);
  ForEachOutput(in, [&](int64_t, int, int32_t e) { ++s.counts[e]; });
  AlignOffsets(context, s.counts, &s.offsets);

  s.row_ids.assign(s.offsets.back(), 0);
  s.position.assign(in.num_rows * in.k, -1);
  std::ranges::fill(s.counts, 0);
  ForEachOutput(in, [&](int64_t n, int j, int32_t e) {
    const int32_t r = s.offsets[e] + s.counts[e]++;
    s.position[n * in.k + j] = r;
    s.row_ids[r] = static_cast<int32_t>(n);
  });

  UseRows(context, in, out);
  out->row_ids = s.row_ids.data();
  out->num_rows = s.offsets.back();
  out->offsets = s.offsets;
  out->position = s.position.data();
}

// Groups rows by expert in the masked layout. The capacity is the largest count of an expert.
void GroupByExpertMasked(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  auto& s = out->storage;
  s.counts.assign(context.num_local_experts, 0);
  ForEachOutput(in, [&](int64_t, int, int32_t e) { ++s.counts[e]; });
  out->capacity = s.counts.empty() ? 0 : *std::ranges::max_element(s.counts);
  out->num_rows = out->capacity * context.num_local_experts;

  s.row_ids.assign(out->num_rows, 0);
  s.position.assign(in.num_rows * in.k, -1);
  std::ranges::fill(s.counts, 0);
  ForEachOutput(in, [&](int64_t n, int j, int32_t e) {
    const auto r = static_cast<int32_t>(e * out->capacity + s.counts[e]++);
    s.position[n * in.k + j] = r;
    s.row_ids[r] = static_cast<int32_t>(n);
  });

  UseRows(context, in, out);
  out->row_ids = s.row_ids.data();
  out->counts = s.counts;
  out->position = s.position.data();
}

// Fills storage.places with the valid places, expert by expert, and storage.counts with the number
// of valid places per expert.
void ListValidPlaces(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  auto& s = out->storage;
  s.places.clear();
  s.counts.assign(context.num_local_experts, 0);
  for (int e = 0; e < context.num_local_experts; ++e) {
    for (int source = 0; source < in.sources; ++source) {
      const int32_t count = in.counts[source * in.counts_stride + e];
      CHECK_LE(count, in.capacity);
      const auto first = static_cast<int32_t>((int64_t{e} * in.sources + source) * in.capacity);
      for (int32_t i = 0; i < count; ++i) s.places.push_back(first + i);
      s.counts[e] += count;
    }
  }
  out->places = s.places.data();
  out->num_places = static_cast<int64_t>(s.places.size());
}

// Assigns a row to each place in storage.places. The places of expert e get rows row_of(e),
// row_of(e) + 1, …
template <typename RowOf>
void AssignRows(const Dispatched& in, int64_t num_rows, const RowOf& row_of, GroupedRows* out) {
  auto& s = out->storage;
  s.row_ids.assign(num_rows, 0);
  s.place_rows.resize(s.places.size());
  size_t i = 0;
  for (size_t e = 0; e < s.counts.size(); ++e) {
    for (int32_t r = 0; r < s.counts[e]; ++r, ++i) {
      s.place_rows[i] = static_cast<int32_t>(row_of(e) + r);
      s.row_ids[s.place_rows[i]] = in.place_row[s.places[i]];
    }
  }
  out->num_rows = num_rows;
  out->row_ids = s.row_ids.data();
  out->place_rows = s.place_rows.data();
}

void GroupPlacesContiguous(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  ListValidPlaces(context, in, out);
  UseRows(context, in, out);
  auto& s = out->storage;
  AlignOffsets(context, s.counts, &s.offsets);
  AssignRows(
      in, s.offsets.back(), [&](size_t e) { return s.offsets[e]; }, out);
  out->offsets = s.offsets;
}

void GroupPlacesMasked(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  ListValidPlaces(context, in, out);
  UseRows(context, in, out);
  auto& s = out->storage;
  out->capacity = s.counts.empty() ? 0 : *std::ranges::max_element(s.counts);
  AssignRows(
      in, out->capacity * context.num_local_experts,
      [&](size_t e) { return static_cast<int64_t>(e) * out->capacity; }, out);
  out->counts = s.counts;
}

// The runner's outputs stay where they are. These functions only return their indices.
ExpertRows OutputsByPosition(const GroupedRows& rows, float* y) {
  return {.rows = y, .num_rows = rows.num_rows, .position = rows.position};
}
ExpertRows OutputsByPlace(const GroupedRows& rows, float* y) {
  return {.rows = y,
          .num_rows = rows.num_rows,
          .places = rows.places,
          .place_rows = rows.place_rows,
          .num_places = rows.num_places};
}

}  // namespace

PermutePair SortRowsByExpert() { return {SortByExpert, OutputsByPosition}; }
PermutePair GroupRowsMasked() { return {GroupByExpertMasked, OutputsByPosition}; }
PermutePair CompactPlaces() { return {GroupPlacesContiguous, OutputsByPlace}; }
PermutePair CompactPlacesMasked() { return {GroupPlacesMasked, OutputsByPlace}; }

}  // namespace switchyard
