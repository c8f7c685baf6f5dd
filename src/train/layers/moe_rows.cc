// Token permutation and exchange of rows between tokens and experts.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/check.h"
#include "train/layers/moe.h"
#include "train/math/row_math.h"

namespace switchyard::train {
namespace {

constexpr int64_t kRowGrain = 32;

template <typename T>
void CopyScaled(const T* row, T weight, int64_t n, T* to) {
  for (int64_t c = 0; c < n; ++c) to[c] = weight * row[c];
}

}  // namespace

// Gathers the rows of all slots in the sorted order: rows[t], or weight · rows[t].
template <typename T>
void MoeLayer<T>::Pack(const T* rows, bool weighted, const MoeState<T>& s, T* out,
                       ThreadPool& pool) {
  pool.RunRanges(std::ssize(s.slots), kRowGrain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int32_t slot = s.slots[i];
      const T* row = rows + slot / k_ * hidden_;
      T* to = out + i * hidden_;
      if (weighted) {
        CopyScaled(row, s.router.weights[slot], hidden_, to);
      } else {
        std::copy_n(row, hidden_, to);
      }
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
      CopyScaled(dy, s->router.weights[slot], hidden_, out);
    }
  }};
}

// On a single rank, the sorted slots already have the order of the expert rows, so their rows are
// written directly to `own`. Otherwise sends the row of each token once to each rank that has
// experts of the token.
template <typename T>
void MoeLayer<T>::SendToExperts(const T* rows, bool gradient, std::vector<T>* own, MoeState<T>* s,
                                ThreadPool& pool) {
  if (IsSingleRank()) {
    own->resize(s->slots.size() * hidden_);
    return Pack(rows, gradient && !recompute_, *s, own->data(), pool);
  }
  const TopK& topk = s->router.topk;
  std::byte* buffer = ranks_.dispatcher->InputRows(topk.tokens, /*decode=*/false, &s->exchange);
  CHECK(buffer != nullptr);
  pool.RunRanges(topk.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* to = reinterpret_cast<T*>(buffer + t * RowBytes());
      std::copy_n(rows + t * hidden_, hidden_, to);
      if (gradient) std::copy_n(s->router.weights.data() + t * k_, k_, to + hidden_);
    }
  });
  if (gradient) {
    ranks_.dispatcher->BeginDispatchAgain(nullptr, /*decode=*/false, &s->exchange);
  } else {
    ranks_.dispatcher->BeginDispatch(nullptr, topk, /*decode=*/false, &s->exchange);
  }
}

// Orders the (dispatched row, slot) pairs by expert, then by row. Dispatched rows are ordered by
// source rank, then by token.
template <typename T>
void MoeLayer<T>::OrderByExpert(const Dispatched& in, MoeState<T>* s) const {
  s->offsets.assign(mine_.size() + 1, 0);
  const auto for_each = [&](const auto& visit) {
    for (int64_t n = 0; n < in.num_rows; ++n)
      for (int j = 0; j < in.k; ++j)
        if (const int32_t e = in.topk_ids[n * in.topk_stride + j]; e >= 0) visit(n, j, e);
  };
  for_each([&](int64_t, int, int32_t e) { ++s->offsets[e + 1]; });
  std::partial_sum(s->offsets.begin(), s->offsets.end(), s->offsets.begin());
  std::vector<int32_t> next(s->offsets.begin(), s->offsets.end() - 1);
  s->row_of.resize(s->offsets.back());
  s->slot_of.resize(s->offsets.back());
  s->position.assign(in.num_rows * in.k, -1);
  for_each([&](int64_t n, int j, int32_t e) {
    const int32_t r = next[e]++;
    s->row_of[r] = static_cast<int32_t>(n);
    s->slot_of[r] = j;
    s->position[n * in.k + j] = r;
  });
}

// Receives the rows of this rank's experts.
template <typename T>
void MoeLayer<T>::ReceiveRows(bool gradient, std::vector<T>* rows, MoeState<T>* s,
                              ThreadPool& pool) {
  if (IsSingleRank()) {
    if (gradient) return;
    s->offsets.assign(mine_.size() + 1, 0);
    std::partial_sum(s->sent.begin(), s->sent.end(), s->offsets.begin() + 1);
    return;
  }
  const Dispatched in = ranks_.dispatcher->EndDispatch(&s->exchange);
  if (!gradient) OrderByExpert(in, s);
  rows->resize(s->row_of.size() * hidden_);
  const bool weights = gradient && recompute_;
  if (weights) s->row_weights.resize(s->row_of.size());
  pool.RunRanges(std::ssize(s->row_of), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = reinterpret_cast<const T*>(in.row_places[s->row_of[r]]);
      T* to = rows->data() + r * hidden_;
      if (weights) s->row_weights[r] = row[hidden_ + s->slot_of[r]];
      if (gradient && !weights) {
        CopyScaled(row, row[hidden_ + s->slot_of[r]], hidden_, to);
      } else {
        std::copy_n(row, hidden_, to);
      }
    }
  });
}

// Sends each row back to the rank of its token, which stores it at [token, slot].
template <typename T>
void MoeLayer<T>::ReturnRows(const std::vector<T>& rows, const std::vector<T>& extra,
                             MoeState<T>* s, ThreadPool& pool) {
  if (IsSingleRank()) return;
  const ExpertRows experts = {.num_rows = std::ssize(s->row_of), .position = s->position.data()};
  const auto places = ranks_.dispatcher->OutputDestinations(experts, &s->exchange);
  pool.RunRanges(experts.num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(places[r], rows.data() + r * hidden_, hidden_ * sizeof(T));
      if (!extra.empty()) std::memcpy(places[r] + hidden_ * sizeof(T), extra.data() + r, sizeof(T));
    }
  });
  ranks_.dispatcher->BeginCombine(experts, &s->exchange);
}

template <typename T>
void MoeLayer<T>::ReceiveReturnedRows(std::vector<T>* own, std::vector<T>* rows,
                                      std::vector<T>* extra, MoeState<T>* s, ThreadPool& pool) {
  if (IsSingleRank()) return rows->swap(*own);
  const std::byte* returned = ranks_.dispatcher->EndCombineBySlot(&s->exchange);
  CHECK(returned != nullptr);
  rows->resize(s->slots.size() * hidden_);
  pool.RunRanges(std::ssize(s->slots), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* row = returned + s->slots[i] * RowBytes();
      std::memcpy(rows->data() + i * hidden_, row, hidden_ * sizeof(T));
      if (extra != nullptr)
        std::memcpy(extra->data() + s->slots[i], row + hidden_ * sizeof(T), sizeof(T));
    }
  });
  ranks_.dispatcher->ReleaseOutputs(&s->exchange);
}

template <typename T>
void MoeLayer<T>::RecomputeOutputs(MoeState<T>* s, ThreadPool& pool) {
  Forward<T>(experts_, s->offsets, s->rows.data(), &s->experts, s->drows.data(), pool);
  const bool single = IsSingleRank();
  const int64_t rows = s->offsets.back();
  if (!single) s->row_dweights.resize(rows);
  pool.RunRanges(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* dy = s->results.data() + r * hidden_;
      T& dweight = single ? s->dweights[s->slots[r]] : s->row_dweights[r];
      dweight = Dot(dy, s->drows.data() + r * hidden_, hidden_);
      CopyScaled(dy, single ? s->router.weights[s->slots[r]] : s->row_weights[r], hidden_, dy);
    }
  });
}

#define SWITCHYARD_MOE_ROWS(T)                                                                \
  template TileRows<T> MoeLayer<T>::TokenRows(const MoeState<T>&) const;                      \
  template TileRows<T> MoeLayer<T>::OutputGradients(MoeState<T>*) const;                      \
  template void MoeLayer<T>::SendToExperts(const T*, bool, std::vector<T>*, MoeState<T>*,     \
                                           ThreadPool&);                                      \
  template void MoeLayer<T>::ReceiveRows(bool, std::vector<T>*, MoeState<T>*, ThreadPool&);   \
  template void MoeLayer<T>::ReturnRows(const std::vector<T>&, const std::vector<T>&,         \
                                        MoeState<T>*, ThreadPool&);                           \
  template void MoeLayer<T>::ReceiveReturnedRows(std::vector<T>*, std::vector<T>*,            \
                                                 std::vector<T>*, MoeState<T>*, ThreadPool&); \
  template void MoeLayer<T>::RecomputeOutputs(MoeState<T>*, ThreadPool&);
SWITCHYARD_MOE_ROWS(float)
SWITCHYARD_MOE_ROWS(double)

}  // namespace switchyard::train
