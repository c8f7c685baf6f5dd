#include "moe/permute.h"

#include <fmt/format.h>

#include "core/check.h"
#include "moe/rows.h"

namespace switchyard {
namespace {

// Runners read float32. Rows that travelled as such are read where they arrived.
void UseRowsInPlace(const Dispatched& in, int64_t hidden, GroupedRows* out) {
  out->x = reinterpret_cast<const float*>(in.rows);
  out->ldx = hidden;
}

void WidenAllRows(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  const int64_t hidden = context.hidden, row_bytes = hidden * SizeOf(in.dtype);
  float* x = out->storage.x.Get(in.num_rows * hidden);
  context.pool.RunRanges(in.num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      LoadRow(in.dtype, in.rows + n * row_bytes, hidden, x + n * hidden);
  });
  out->x = x;
  out->ldx = hidden;
}

void SortByExpert(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  auto& [x, offsets, row_ids, position, places] = out->storage;
  const auto id_of = [&](int64_t n, int j) { return in.topk_ids[n * in.topk_stride + j]; };

  offsets.assign(context.num_local_experts + 1, 0);
  for (int64_t n = 0; n < in.num_rows; ++n)
    for (int j = 0; j < in.k; ++j)
      if (const int32_t e = id_of(n, j); e >= 0) ++offsets[e + 1];
  for (int e = 0; e < context.num_local_experts; ++e) offsets[e + 1] += offsets[e];

  // offsets[e] walks to the end of expert e while rows are placed, and is moved back after.
  row_ids.resize(offsets.back());
  position.resize(in.num_rows * in.k);
  for (int64_t n = 0; n < in.num_rows; ++n) {
    for (int j = 0; j < in.k; ++j) {
      const int32_t e = id_of(n, j);
      const int32_t r = e < 0 ? -1 : offsets[e]++;
      position[n * in.k + j] = r;
      if (r >= 0) row_ids[r] = static_cast<int32_t>(n);
    }
  }
  for (int e = context.num_local_experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;

  if (in.dtype == DType::kF32) {
    UseRowsInPlace(in, context.hidden, out);
  } else {
    WidenAllRows(context, in, out);
  }
  out->row_ids = row_ids.data();
  out->offsets = offsets;
  out->position = position.data();
  out->places = nullptr;
}

void PackValid(const PermuteContext& context, const Dispatched& in, GroupedRows* out) {
  auto& [x, offsets, row_ids, position, places] = out->storage;
  offsets.assign(1, 0);
  places.clear();
  for (int e = 0; e < context.num_local_experts; ++e) {
    for (int s = 0; s < in.sources; ++s) {
      const int32_t count = in.counts[s * in.counts_stride + e];
      CHECK_LE(count, in.capacity);
      const auto first = static_cast<int32_t>((int64_t{e} * in.sources + s) * in.capacity);
      for (int32_t i = 0; i < count; ++i) places.push_back(first + i);
    }
    offsets.push_back(static_cast<int32_t>(places.size()));
  }

  out->offsets = offsets;
  out->position = nullptr;
  out->places = places.data();
  if (in.dtype == DType::kF32) {
    UseRowsInPlace(in, context.hidden, out);
    out->row_ids = places.data();
    return;
  }
  // Widening packs as well, so that nothing is read through row_ids later.
  const int64_t hidden = context.hidden, row_bytes = hidden * SizeOf(in.dtype);
  float* packed = x.Get(places.size() * hidden);
  context.pool.RunRanges(
      places.size(), kRowGrain, [&, places = places](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          LoadRow(in.dtype, in.rows + places[r] * row_bytes, hidden, packed + r * hidden);
      });
  out->x = packed;
  out->ldx = hidden;
  out->row_ids = nullptr;
}

// The runner's outputs stay where they are; what travels on is where to find each.
ExpertRows PointAtOutputs(const GroupedRows& rows, float* y) {
  return {y, rows.num_rows(), rows.position, rows.places};
}

}  // namespace

const PermutePair* PermuteTable::Find(DispatchLayout from, RunnerLayout to) const {
  const auto it = pairs_.find({from, to});
  return it == pairs_.end() ? nullptr : &it->second;
}

std::string PermuteTable::Pairs() const {
  std::string text;
  for (const auto& [layouts, pair] : pairs_) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{} → {}", Name(layouts.first), Name(layouts.second));
  }
  return text;
}

PermutePair SortRowsByExpert() { return {SortByExpert, PointAtOutputs}; }
PermutePair PackValidRows() { return {PackValid, PointAtOutputs}; }

}  // namespace switchyard
