#include "moe/dispatchers/published_rows.h"

#include <algorithm>
#include <functional>
#include <span>

#include "core/check.h"

namespace switchyard {
namespace {

// One fetch covers several rows if the gaps between them are at most this number of rows, because
// every fetch is a round trip.
constexpr int32_t kFetchGap = 8;

}  // namespace

PublishedRows::PublishedRows(const ExchangeShape& shape, int64_t capacity, BufferPlan* plan)
    : hidden_(shape.hidden),
      capacity_(capacity),
      row_bytes_(shape.row_format.Bytes(shape.hidden)),
      k_(shape.k),
      format_(shape.row_format),
      routing_(plan->Add("routing", sizeof(int32_t) * (1 + capacity * shape.k))),
      rows_(plan->Add("published rows", row_bytes_ * capacity)) {}

void PublishedRows::PublishRouting(const ExchangeSlots& slots, const SlotUse& use,
                                   const TopK& topk) const {
  auto* routing = reinterpret_cast<int32_t*>(slots.Local(use, routing_));
  routing[0] = static_cast<int32_t>(topk.tokens);
  std::ranges::copy(topk.ids, routing + 1);
}

void PublishedRows::PublishRows(const ExchangeSlots& slots, const SlotUse& use, const float* x,
                                const TopK& topk, const ExpertMap& experts,
                                ThreadPool& pool) const {
  const auto is_remote = [&](int32_t id) { return id >= 0 && experts.Owner(id) != slots.rank(); };
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (std::ranges::any_of(std::span(topk.ids.data() + t * k_, k_), is_remote))
        StoreRow(format_, x + t * hidden_, hidden_, slots.Local(use, RowOffset(t)));
  };
  pool.RunRanges(topk.tokens, kRowGrain, std::cref(body));
}

PublishedRows::Routing PublishedRows::ReadRouting(ExchangeSlots& slots, const SlotUse& use,
                                                  int source, const char* what) const {
  slots.Fetch(use, source, routing_, sizeof(int32_t), what);
  const auto* routing = reinterpret_cast<const int32_t*>(slots.At(use, source, routing_));
  const int64_t tokens = routing[0];
  CHECK(tokens >= 0 && tokens <= capacity_);
  slots.Fetch(use, source, routing_ + sizeof(int32_t), sizeof(int32_t) * tokens * k_, what);
  return {tokens, routing + 1};
}

void PublishedRows::FetchRows(ExchangeSlots& slots, const SlotUse& use, int source,
                              std::span<const int32_t> tokens, const char* what) const {
  if (slots.Mapped(source)) return;
  for (size_t i = 0; i < tokens.size();) {
    const int32_t first = tokens[i];
    int32_t last = first;
    while (++i < tokens.size() && tokens[i] - last <= kFetchGap) last = tokens[i];
    slots.Fetch(use, source, RowOffset(first), (last + 1 - first) * row_bytes_, what);
  }
}

}  // namespace switchyard
