// Attention to compressed entries on a thread pool. Plain loops, whose bits are the same on every
// instruction set.
#include "kernels/compressed.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/cpu/driver.h"

namespace switchyard::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kChannels = 64;  // channels of a task of Compress
constexpr int64_t kHeads = 8;      // heads of a task of AttendToEntries

// Eight sums, so that the compiler uses vectors.
float Dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kSums = 8;
  float sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int64_t j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[i % kSums] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// Rotates the last elements of a row of `width` elements, in interleaved pairs; back if `sign` is
// −1. `cos_sin` [rotary_dim]: of the position.
void RotateTail(float* row, int64_t width, int64_t rotary_dim, const float* cos_sin, float sign) {
  float* x = row + width - rotary_dim;
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float cos = cos_sin[i], sin = sign * cos_sin[half + i];
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos - b * sin;
    x[2 * i + 1] = b * cos + a * sin;
  }
}

// Running softmaxes of adjacent channels.
struct RunningSoftmax {
  float *largest, *sum, *value;  // [n] each; a sum of 0: nothing was added

  void Clear(int64_t n) const {
    std::fill_n(largest, n, 0.0f);
    std::fill_n(sum, n, 0.0f);
    std::fill_n(value, n, 0.0f);
  }
  void CopyFrom(const RunningSoftmax& other, int64_t n) const {
    std::copy_n(other.largest, n, largest);
    std::copy_n(other.sum, n, sum);
    std::copy_n(other.value, n, value);
  }
  void Add(const float* gate, const float* bias, const float* row, int64_t n) const {
    for (int64_t c = 0; c < n; ++c) {
      const float z = gate[c] + bias[c];
      if (sum[c] == 0.0f) {
        largest[c] = z;
        sum[c] = 1.0f;
        value[c] = row[c];
        continue;
      }
      // One of the two factors is exp(0).
      const bool larger = z > largest[c];
      const float factor = std::exp(larger ? largest[c] - z : z - largest[c]);
      const float old = larger ? factor : 1.0f, own = larger ? 1.0f : factor;
      if (larger) largest[c] = z;
      sum[c] = sum[c] * old + own;
      value[c] = value[c] * old + own * row[c];
    }
  }
};

// Channels [begin, begin + n) of the rows of one sequence.
class BlockRun {
 public:
  BlockRun(const CompressParams& p, int64_t begin, int64_t n, float* memory)
      : p_(p),
        begin_(begin),
        n_(n),
        current_{memory, memory + n, memory + 2 * n},
        next_{memory + 3 * n, memory + 4 * n, memory + 5 * n} {}

  void Run(const StateSpan& s) {
    current_.Clear(n_);
    next_.Clear(n_);
    if (s.from >= 0) Move(s.from, /*store=*/false);
    for (int64_t row = 0; row < s.rows; ++row) {
      for (const StateSpan::Copy& copy : s.copies)
        if (copy.slot >= 0 && copy.rows == row && row > 0) Move(copy.slot, /*store=*/true);
      AddRow(s.row_begin + row);
    }
    Move(s.to, /*store=*/true);
  }

 private:
  void AddRow(int64_t t) {
    const int64_t place = p_.positions[t] % p_.ratio;
    if (place == 0 && p_.overlaps) {
      current_.CopyFrom(next_, n_);
      next_.Clear(n_);
    } else if (place == 0) {
      current_.Clear(n_);
    }
    const int64_t own = begin_ + (p_.overlaps ? p_.width : 0);
    const auto add = [&](const RunningSoftmax& to, int64_t first) {
      to.Add(p_.gates + t * p_.ld + first, p_.bias + place * p_.ld + first,
             p_.rows + t * p_.ld + first, n_);
    };
    add(current_, own);
    if (p_.overlaps) add(next_, begin_);
    if (place != p_.ratio - 1) return;
    float* entry = p_.scratch + t * p_.width + begin_;
    for (int64_t c = 0; c < n_; ++c) entry[c] = current_.value[c] / current_.sum[c];
  }

  // Copies the state to or from slot `slot`.
  void Move(int64_t slot, bool store) {
    float* at = p_.states + slot * p_.state_stride + begin_;
    const auto move = [&](const RunningSoftmax& x) {
      for (float* part : {x.largest, x.sum, x.value}) {
        if (store) {
          std::copy_n(part, n_, at);
        } else {
          std::copy_n(at, n_, part);
        }
        at += p_.width;
      }
    };
    move(current_);
    if (p_.overlaps) move(next_);
  }

  const CompressParams& p_;
  const int64_t begin_, n_;
  const RunningSoftmax current_, next_;
};

// Norms, rotates and stores the entry that row t completes.
void FinishEntry(const CompressParams& p, int64_t t) {
  float* entry = p.scratch + t * p.width;
  const float squares = Dot(entry, entry, p.width);
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(p.width) + p.eps);
  for (int64_t c = 0; c < p.width; ++c) entry[c] = entry[c] * factor * p.norm[c];
  const int64_t first = p.positions[t] - p.ratio + 1;
  RotateTail(entry, p.width, p.rotary_dim, p.cos_sin + first * p.rotary_dim, 1.0f);
  WriteCacheRow(p.to.dtype, entry, p.width, p.to.Of(p.slots[t]));
}

// The sequence and the position of each row of a pass.
struct RowPlace {
  const SequenceSpan* sequence = nullptr;
  int64_t position = 0;
};
std::vector<RowPlace> PlacesOf(std::span<const SequenceSpan> sequences) {
  std::vector<RowPlace> places;
  for (const SequenceSpan& s : sequences) {
    CHECK_EQ(static_cast<int64_t>(s.row_begin), std::ssize(places));
    for (int64_t row = 0; row < s.rows; ++row) places.push_back({&s, s.kv_len - s.rows + row});
  }
  return places;
}

// The slot of the last position of entry e.
int64_t SlotOfEntry(const SequenceSpan& s, int64_t e, int64_t ratio, int64_t page_size) {
  return s.SlotOf((e + 1) * ratio - 1, page_size);
}

void SelectOfRow(const SelectEntriesParams& p, const RowPlace& place, int64_t t) {
  const int64_t entries = EntriesAt(place.position, p.ratio);
  if (entries <= p.topk) return;
  float* key = cpu::ThreadScratch(p.width);
  static thread_local std::vector<float> scores;
  static thread_local std::vector<int32_t> order;
  scores.resize(static_cast<size_t>(entries));
  order.resize(static_cast<size_t>(entries));
  for (int64_t e = 0; e < entries; ++e) {
    ReadCacheRow(p.entries.dtype,
                 p.entries.Of(SlotOfEntry(*place.sequence, e, p.ratio, p.page_size)), p.width, key);
    float score = 0.0f;
    for (int64_t h = 0; h < p.heads; ++h)
      score += p.weights[t * p.heads + h] *
               std::max(0.0f, Dot(p.q + t * p.ldq + h * p.width, key, p.width));
    scores[e] = std::isnan(score) ? kMinusInfinity : score;
  }
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + p.topk, order.end(), [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  int32_t* selected = p.selected + t * p.topk;
  std::copy_n(order.begin(), p.topk, selected);
  std::sort(selected, selected + p.topk);
}

// The output of heads [begin, end) of row t.
class HeadsRun {
 public:
  HeadsRun(const EntryAttentionParams& p, const RowPlace& place, int64_t t, int64_t begin,
           int64_t end)
      : p_(p),
        place_(place),
        q_(p.q + t * p.ldq),
        out_(p.out + t * p.ldo),
        t_(t),
        begin_(begin),
        end_(end),
        key_(cpu::ThreadScratch(p.width)) {}

  void Run() {
    for (int64_t h = begin_; h < end_; ++h) {
      largest_[h - begin_] = p_.sinks ? p_.sinks[h] : kMinusInfinity;
      sum_[h - begin_] = p_.sinks ? 1.0f : 0.0f;
      std::fill_n(out_ + h * p_.width, p_.width, 0.0f);
    }
    const SequenceSpan& s = *place_.sequence;
    const int64_t row_bytes = CacheRowBytes(p_.dtype, p_.width);
    const auto* cache = static_cast<const std::byte*>(p_.cache);
    for (int64_t j = std::max<int64_t>(0, place_.position - p_.window + 1); j <= place_.position;
         ++j)
      Add(p_.dtype, cache + s.SlotOf(j, p_.page_size) * row_bytes);
    AddEntries();
    const float* cos_sin = p_.cos_sin + place_.position * p_.rotary_dim;
    for (int64_t h = begin_; h < end_; ++h) {
      float* out = out_ + h * p_.width;
      for (int64_t c = 0; c < p_.width; ++c) out[c] /= sum_[h - begin_];
      RotateTail(out, p_.width, p_.rotary_dim, cos_sin, -1.0f);
    }
  }

 private:
  void AddEntries() {
    if (p_.ratio == 0) return;
    const int64_t all = EntriesAt(place_.position, p_.ratio);
    const bool selects = p_.selected != nullptr && all > p_.topk;
    for (int64_t i = 0; i < (selects ? p_.topk : all); ++i) {
      const int64_t e = selects ? p_.selected[t_ * p_.topk + i] : i;
      Add(p_.entries.dtype,
          p_.entries.Of(SlotOfEntry(*place_.sequence, e, p_.ratio, p_.page_size)));
    }
  }

  void Add(DType dtype, const void* row) {
    ReadCacheRow(dtype, row, p_.width, key_);
    for (int64_t h = begin_; h < end_; ++h) {
      float *out = out_ + h * p_.width, &largest = largest_[h - begin_], &sum = sum_[h - begin_];
      const float score = p_.scale * Dot(q_ + h * p_.width, key_, p_.width);
      if (score > largest) {
        const float factor = std::exp(largest - score);
        for (int64_t c = 0; c < p_.width; ++c) out[c] *= factor;
        sum *= factor;
        largest = score;
      }
      const float weight = std::exp(score - largest);
      for (int64_t c = 0; c < p_.width; ++c) out[c] += weight * key_[c];
      sum += weight;
    }
  }

  const EntryAttentionParams& p_;
  const RowPlace& place_;
  const float* const q_;
  float* const out_;
  const int64_t t_, begin_, end_;
  float* const key_;
  float largest_[kHeads] = {}, sum_[kHeads] = {};
};

}  // namespace

void Compress(const CompressParams& p, ThreadPool& pool) {
  const int64_t blocks = (p.width + kChannels - 1) / kChannels;
  cpu::RunTasks(pool, p.num_sequences * blocks, [&](int64_t task) {
    const StateSpan& sequence = p.sequences[task / blocks];
    CHECK(sequence.rows > 0 && sequence.to >= 0 && sequence.from != sequence.to);
    const int64_t begin = task % blocks * kChannels, n = std::min(kChannels, p.width - begin);
    BlockRun(p, begin, n, cpu::ThreadScratch(6 * n)).Run(sequence);
  });
  cpu::RunRows(pool, p.m, p.width, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (p.positions[t] % p.ratio == p.ratio - 1) FinishEntry(p, t);
  });
}

void SelectEntries(const SelectEntriesParams& p, ThreadPool& pool) {
  const std::vector<RowPlace> places = PlacesOf(p.sequences);
  cpu::RunTasks(pool, std::ssize(places), [&](int64_t t) { SelectOfRow(p, places[t], t); });
}

void AttendToEntries(const EntryAttentionParams& p, ThreadPool& pool) {
  const std::vector<RowPlace> places = PlacesOf(p.sequences);
  const int64_t blocks = (p.heads + kHeads - 1) / kHeads;
  cpu::RunTasks(pool, std::ssize(places) * blocks, [&](int64_t task) {
    const int64_t t = task / blocks, begin = task % blocks * kHeads;
    HeadsRun(p, places[t], t, begin, std::min(p.heads, begin + kHeads)).Run();
  });
}

}  // namespace switchyard::kernels
