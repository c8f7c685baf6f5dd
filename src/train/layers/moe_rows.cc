// Token permutation and all-to-all of rows between tokens and experts.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "core/check.h"
#include "train/layers/moe.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

constexpr int64_t kRowGrain = 32;
constexpr size_t kAlignment = 64;

// A message starts with the number of rows for each expert.
size_t HeaderBytes(int64_t experts) {
  const size_t bytes = static_cast<size_t>(experts) * sizeof(int32_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

// Gathers the rows of slots [begin, begin + count) of the sorted order: rows[t], or
// weight · rows[t].
template <typename T>
void MoeLayer<T>::Pack(const T* rows, bool weighted, int64_t begin, int64_t count,
                       const MoeState<T>& s, T* out, ThreadPool& pool) {
  pool.RunRanges(count, kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int32_t slot = s.slots[begin + i];
      const T* row = rows + slot / k_ * hidden_;
      T* to = out + i * hidden_;
      if (!weighted) {
        std::copy_n(row, hidden_, to);
        continue;
      }
      const T weight = s.router.weights[slot];
      for (int64_t c = 0; c < hidden_; ++c) to[c] = weight * row[c];
    }
  });
}

template <typename T>
TileRows<T> MoeLayer<T>::TokenRows(const MoeState<T>& s) const {
  return {.put = [this, &s](int64_t begin, int64_t count, T* out) {
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(s.x + s.slots[begin + i] / k_ * hidden_, hidden_, out + i * hidden_);
  }};
}

template <typename T>
TileRows<T> MoeLayer<T>::OutputGradients(MoeState<T>* s) const {
  return {.put = [this, s](int64_t begin, int64_t count, T* out) {
    for (int64_t i = 0; i < count; ++i, out += hidden_) {
      const int32_t slot = s->slots[begin + i];
      const T* dy = s->dy + slot / k_ * hidden_;
      s->dweights[slot] = Dot(dy, s->outputs.data() + (begin + i) * hidden_, hidden_);
      const T weight = s->router.weights[slot];
      for (int64_t c = 0; c < hidden_; ++c) out[c] = weight * dy[c];
    }
  }};
}

// Sends one row for each slot to the owner of its expert. A single rank writes them directly to
// `own`: its order of slots is the order of its experts' rows.
template <typename T>
void MoeLayer<T>::SendToExperts(const T* rows, bool weighted, bool counts, std::vector<T>* own,
                                MoeState<T>* s, ThreadPool& pool) {
  if (IsSingleRank()) {
    own->resize(s->slots.size() * hidden_);
    return Pack(rows, weighted, 0, std::ssize(s->slots), *s, own->data(), pool);
  }
  const int ranks = exchange_.size();
  std::vector<size_t> bytes(ranks);
  std::vector<int32_t> begins(ranks + 1);
  for (int r = 0; r < ranks; ++r) {
    const Share theirs = EvenShare(num_experts_, ranks, r);
    const auto first = s->sent.begin() + theirs.begin, last = s->sent.begin() + theirs.end;
    const int32_t n = std::accumulate(first, last, 0);
    begins[r + 1] = begins[r] + n;
    bytes[r] =
        (counts ? HeaderBytes(theirs.size()) : 0) + static_cast<size_t>(n) * hidden_ * sizeof(T);
  }
  exchange_.Open(bytes, &s->exchange);
  for (int r = 0; r < ranks; ++r) {
    const Share theirs = EvenShare(num_experts_, ranks, r);
    std::byte* message = s->exchange.to[r];
    if (counts) {
      std::memcpy(message, s->sent.data() + theirs.begin, theirs.size() * sizeof(int32_t));
      message += HeaderBytes(theirs.size());
    }
    Pack(rows, weighted, begins[r], begins[r + 1] - begins[r], *s, reinterpret_cast<T*>(message),
         pool);
  }
  exchange_.Post(&s->exchange);
}

// Receives the rows of this rank's experts, ordered by expert, then by rank.
template <typename T>
void MoeLayer<T>::ReceiveRows(bool counts, std::vector<T>* rows, MoeState<T>* s, ThreadPool& pool) {
  const int ranks = exchange_.size();
  const int64_t experts = mine_.size();
  if (IsSingleRank()) {
    if (!counts) return;
    s->received = s->sent;
    s->offsets.assign(experts + 1, 0);
    std::partial_sum(s->sent.begin(), s->sent.end(), s->offsets.begin() + 1);
    return;
  }
  exchange_.Wait(&s->exchange);
  if (counts) {
    s->received.resize(ranks * experts);
    s->offsets.assign(experts + 1, 0);
    for (int r = 0; r < ranks; ++r) {
      std::memcpy(s->received.data() + r * experts, s->exchange.from[r].data(),
                  experts * sizeof(int32_t));
      for (int64_t e = 0; e < experts; ++e) s->offsets[e + 1] += s->received[r * experts + e];
    }
    std::partial_sum(s->offsets.begin(), s->offsets.end(), s->offsets.begin());
  }
  rows->resize(static_cast<int64_t>(s->offsets.back()) * hidden_);
  std::vector<int32_t> next(s->offsets.begin(), s->offsets.end() - 1);
  struct Run {
    const T* from;
    int64_t to, count;
  };
  std::vector<Run> runs;
  for (int r = 0; r < ranks; ++r) {
    const std::byte* message = s->exchange.from[r].data() + (counts ? HeaderBytes(experts) : 0);
    const T* from = reinterpret_cast<const T*>(message);
    for (int64_t e = 0; e < experts; ++e) {
      const int32_t n = s->received[r * experts + e];
      runs.push_back({from, next[e], n});
      from += n * hidden_;
      next[e] += n;
    }
  }
  pool.Run(static_cast<int64_t>(runs.size()), [&](int64_t i) {
    std::copy_n(runs[i].from, runs[i].count * hidden_, rows->data() + runs[i].to * hidden_);
  });
  exchange_.Release(&s->exchange);
}

// The reverse of ReceiveRows and SendToExperts.
template <typename T>
void MoeLayer<T>::ReturnRows(const std::vector<T>& rows, MoeState<T>* s, ThreadPool& pool) {
  if (IsSingleRank()) return;
  const int ranks = exchange_.size();
  const int64_t experts = mine_.size();
  std::vector<size_t> bytes(ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto first = s->received.begin() + r * experts;
    bytes[r] = std::accumulate(first, first + experts, size_t{0}) * hidden_ * sizeof(T);
  }
  exchange_.Open(bytes, &s->exchange);
  std::vector<int32_t> next(s->offsets.begin(), s->offsets.end() - 1);
  struct Run {
    T* to;
    int64_t from, count;
  };
  std::vector<Run> runs;
  for (int r = 0; r < ranks; ++r) {
    T* to = reinterpret_cast<T*>(s->exchange.to[r]);
    for (int64_t e = 0; e < experts; ++e) {
      const int32_t n = s->received[r * experts + e];
      runs.push_back({to, next[e], n});
      to += n * hidden_;
      next[e] += n;
    }
  }
  pool.Run(static_cast<int64_t>(runs.size()), [&](int64_t i) {
    std::copy_n(rows.data() + runs[i].from * hidden_, runs[i].count * hidden_, runs[i].to);
  });
  exchange_.Post(&s->exchange);
}

template <typename T>
void MoeLayer<T>::ReceiveReturnedRows(std::vector<T>* own, std::vector<T>* rows, MoeState<T>* s) {
  if (IsSingleRank()) return rows->swap(*own);
  exchange_.Wait(&s->exchange);
  rows->resize(static_cast<int64_t>(s->slots.size()) * hidden_);
  T* to = rows->data();
  for (const std::span<const std::byte> message : s->exchange.from) {
    if (message.empty()) continue;
    std::memcpy(to, message.data(), message.size());
    to += message.size() / sizeof(T);
  }
  CHECK(to == rows->data() + rows->size());
  exchange_.Release(&s->exchange);
}

size_t MoeMessageBytes(const ModelConfig& config, int ep, int64_t tokens, size_t element_bytes) {
  const RouterConfig& router = config.moe->router;
  const int64_t theirs = EvenShare(router.num_experts, ep, 0).size();  // the largest share
  const int64_t rows = tokens * std::min<int64_t>(router.top_k, theirs);
  return HeaderBytes(theirs) + static_cast<size_t>(rows * config.hidden) * element_bytes;
}

#define SWITCHYARD_MOE_ROWS(T)                                                                  \
  template TileRows<T> MoeLayer<T>::TokenRows(const MoeState<T>&) const;                        \
  template TileRows<T> MoeLayer<T>::OutputGradients(MoeState<T>*) const;                        \
  template void MoeLayer<T>::SendToExperts(const T*, bool, bool, std::vector<T>*, MoeState<T>*, \
                                           ThreadPool&);                                        \
  template void MoeLayer<T>::ReceiveRows(bool, std::vector<T>*, MoeState<T>*, ThreadPool&);     \
  template void MoeLayer<T>::ReturnRows(const std::vector<T>&, MoeState<T>*, ThreadPool&);      \
  template void MoeLayer<T>::ReceiveReturnedRows(std::vector<T>*, std::vector<T>*, MoeState<T>*);
SWITCHYARD_MOE_ROWS(float)
SWITCHYARD_MOE_ROWS(double)

}  // namespace switchyard::train
