// Ops of compressed entries on a GPU: against the CPU, and with the same bits for any chunks.
#include "kernels/cuda/entries/entries.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cache_rows.h"
#include "kernels/cuda/device/device_testing.h"

namespace switchyard::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Rows of several sequences that give entries, and the slots of their states.
struct Rows {
  static constexpr int64_t kSlotsOfSequence = 1024, kStates = 12;

  int64_t width, ratio, rotary;
  bool overlaps;
  DType dtype = DType::kF32;
  int64_t spare;  // elements of a place after its entry
  std::vector<float> values, gates, bias, norm, cos_sin;
  std::vector<int32_t> positions, slots;

  Rows(Random& random, int64_t sequences)
      : width(random.Pick<int64_t>({2, 5, 64, 96, 130, 512})),
        ratio(random.Pick<int64_t>({1, 2, 3, 4, 8, 128})),
        rotary(2 * random.Below(width / 2 + 1)),
        overlaps(random.Below(2) == 0),
        spare(random.Below(2) * 3),
        bias(random.Normal(ratio * ld())),
        norm(random.Normal(width)),
        cos_sin(random.Normal(kSlotsOfSequence * rotary)),
        sequences_(sequences) {}

  int64_t ld() const { return width * (overlaps ? 2 : 1); }
  int64_t state_floats() const { return CompressStateFloats(width, overlaps) + 5; }
  int64_t stride() const { return CacheRowBytes(dtype, width + spare); }
  size_t bytes() const { return sequences_ * kSlotsOfSequence / EntrySpan(ratio) * stride(); }
  // `count` rows of a sequence from `position` on. A negative sequence: padding rows.
  void Add(Random& random, int64_t sequence, int64_t position, int64_t count) {
    for (std::vector<float>* x : {&values, &gates}) {
      const std::vector<float> more = random.Normal(count * ld(), x == &gates ? 2.0f : 1.0f);
      x->insert(x->end(), more.begin(), more.end());
    }
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<int32_t>(position + i));
      slots.push_back(static_cast<int32_t>(sequence * kSlotsOfSequence + position + i));
    }
  }
  // States of blocks with some rows, or without rows.
  std::vector<float> RandomStates(Random& random) const {
    std::vector<float> states = random.Normal(kStates * state_floats());
    for (int64_t slot = 0; slot < kStates; ++slot)
      for (int64_t i = 0; i < CompressStateFloats(width, overlaps); ++i) {
        float& x = states[slot * state_floats() + i];
        if (i / width % 3 == 1) x = 1.0f + std::fabs(x);  // a sum
        if (slot % 4 == 3 && i / width < 3) x = 0.0f;
      }
    return states;
  }
  // Runs rows [first, first + count) on `device`, whose memory the arrays are copied to.
  void Run(Device& device, std::span<const StateSpan> spans, int64_t first, int64_t count,
           std::vector<float>& states, std::vector<std::byte>& places) const {
    const auto part = [&](const auto& all, int64_t each) {
      return std::vector(all.begin() + first * each, all.begin() + (first + count) * each);
    };
    const DeviceVector x(device, part(values, ld())), z(device, part(gates, ld()));
    const DeviceVector at(device, part(positions, 1)), to(device, part(slots, 1));
    const DeviceVector b(device, bias), n(device, norm), table(device, cos_sin);
    const DeviceVector s(device, states);
    const DeviceVector sequences(device, std::vector<StateSpan>(spans.begin(), spans.end()));
    const DeviceVector scratch(device, std::vector<float>(count * width));
    const DeviceVector memory(device, places);
    device.compressed()->Compress(
        {.rows = x.data(),
         .gates = z.data(),
         .ld = ld(),
         .bias = b.data(),
         .m = count,
         .width = width,
         .ratio = ratio,
         .overlaps = overlaps,
         .positions = at.data(),
         .slots = to.data(),
         .states = s.data(),
         .state_stride = state_floats(),
         .sequences = sequences.data(),
         .num_sequences = std::ssize(spans),
         .norm = n.data(),
         .cos_sin = table.data(),
         .rotary_dim = rotary,
         .scratch = scratch.data(),
         .to = {
             .data = memory.data(), .stride = stride(), .span = EntrySpan(ratio), .dtype = dtype}});
    states = s.Read();
    places = memory.Read();
  }

 private:
  int64_t sequences_;
};

class GpuEntriesTest : public DeviceTest {
 protected:
  static void ExpectNear(const float* got, const float* want, int64_t count, double tolerance) {
    for (int64_t i = 0; i < count; ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << i;
  }
};

// Ragged batches: decode rows and prompts, new ones and ones with a state, with and without copies.
TEST_F(GpuEntriesTest, EntriesAndStatesMatchTheCpu) {
  for (int round = 0; round < 48; ++round) {
    Rows rows(random_, 4);
    rows.dtype = kDTypes[round % 3];
    std::vector<StateSpan> spans;
    const auto add = [&](int64_t position, int64_t count, int32_t from, int32_t to) {
      spans.push_back({.row_begin = static_cast<int32_t>(rows.positions.size()),
                       .rows = static_cast<int32_t>(count),
                       .from = from,
                       .to = to});
      rows.Add(random_, std::ssize(spans) - 1, position, count);
    };
    const int64_t most = 3 * rows.ratio + 4;
    add(rows.ratio * (1 + random_.Below(2)) + rows.ratio - 1, 1, 7, 0);  // completes an entry
    add(1 + random_.Below(2 * rows.ratio), 1 + random_.Below(most), 5, 1);
    add(0, 2 + random_.Below(most), -1, 2);
    const auto kept = static_cast<int32_t>(1 + random_.Below(spans.back().rows - 1));
    spans.back().copies[0] = {.rows = kept, .slot = 8};
    if (kept + 1 < spans.back().rows) spans.back().copies[1] = {.rows = kept + 1, .slot = 9};
    add(random_.Below(3 * rows.ratio) + 1, 1 + random_.Below(2), 6, 3);
    SCOPED_TRACE(::testing::Message() << "round " << round << " width " << rows.width << " ratio "
                                      << rows.ratio << " overlaps " << rows.overlaps);

    std::vector<float> want = rows.RandomStates(random_), got = want;
    std::vector<std::byte> want_places(rows.bytes(), std::byte{0}), got_places = want_places;
    const int64_t all = std::ssize(rows.positions);
    rows.Run(*cpu_, spans, 0, all, want, want_places);
    rows.Run(*exact_, spans, 0, all, got, got_places);
    ExpectNear(got.data(), want.data(), std::ssize(want), 5e-5);
    const double tolerance = rows.dtype == DType::kF32 ? 3e-4 : 1.5e-2;
    std::vector<float> a(rows.width), b(rows.width);
    for (size_t at = 0; at < want_places.size(); at += rows.stride()) {
      ReadCacheRow(rows.dtype, want_places.data() + at, rows.width, a.data());
      ReadCacheRow(rows.dtype, got_places.data() + at, rows.width, b.data());
      ExpectNear(b.data(), a.data(), rows.width, tolerance);
      const size_t end = at + CacheRowBytes(rows.dtype, rows.width);
      ASSERT_EQ(std::memcmp(&got_places[end - 1] + 1, &want_places[end - 1] + 1,
                            at + rows.stride() - end),
                0);
    }
  }
}

// Chunks, padding rows and empty spans do not change a bit.
TEST_F(GpuEntriesTest, ChunksAndPaddingDoNotChangeABit) {
  for (int round = 0; round < 24; ++round) {
    Rows rows(random_, 2);
    rows.dtype = kDTypes[round % 3];
    const int64_t count = 1 + random_.Below(5 * rows.ratio + 20);
    rows.Add(random_, 0, 0, count);
    SCOPED_TRACE(::testing::Message() << "width " << rows.width << " ratio " << rows.ratio
                                      << " overlaps " << rows.overlaps << " rows " << count);
    std::vector<float> whole = rows.RandomStates(random_), states = whole;
    std::vector<std::byte> want(rows.bytes(), std::byte{1}), got = want;
    const StateSpan all[] = {{.rows = static_cast<int32_t>(count), .to = 0}};
    rows.Run(*exact_, all, 0, count, whole, want);

    Rows padded = rows;
    padded.Add(random_, 1, rows.ratio - 1, 1);  // would complete an entry
    const bool small = round % 2 == 0 && rows.ratio <= 8;
    int32_t from = -1;
    for (int64_t row = 0; row < count;) {
      const int64_t rest = count - row;
      const auto part = static_cast<int32_t>(1 + random_.Below(small ? 3 : rest) % rest);
      const int32_t to = from < 0 ? 2 : 5 - from;  // slots 2 and 3 in turn
      std::vector<StateSpan> spans = {{.rows = part, .from = from, .to = to}};
      const bool last = row + part == count;
      if (last) {
        spans.push_back({.row_begin = part, .rows = 1});
        spans.push_back({.row_begin = part + 1, .rows = 0});
      }
      padded.Run(*exact_, spans, row, part + (last ? 1 : 0), states, got);
      from = to;
      row += part;
    }
    EXPECT_TRUE(got == want);
    const int64_t floats = CompressStateFloats(rows.width, rows.overlaps);
    EXPECT_TRUE(SameBits(&states[from * rows.state_floats()], whole.data(), floats));
    EXPECT_TRUE(SameBits(&states[5 * rows.state_floats()], &whole[5 * rows.state_floats()],
                         rows.state_floats()));
  }
}

// Multiples of 1/4, whose products and sums are exact. So scores are the same on every device, and
// many of them are equal.
std::vector<float> OnGrid(std::vector<float> values) {
  for (float& v : values) v = std::round(v * 4) / 4;
  return values;
}

// A batch of sequences with cached rows and entries in pages.
struct Cached {
  int64_t heads, width, ratio, window, topk, rotary;
  DType dtype;
  int32_t page_size = 8;
  int64_t stride = 0, span = 1;  // of places of entries
  bool has_sinks;
  std::vector<std::vector<int32_t>> pages;
  std::vector<SequenceSpan> sequences;
  std::vector<std::byte> cache, entries;
  std::vector<float> q, weights, sinks, cos_sin;
  int64_t rows = 0, slots = 0;

  Cached(Random& random, DType of, int64_t batch)
      : heads(1 + random.Below(20)),
        width(random.Pick<int64_t>({2, 7, 16, 48, 128, 512})),
        ratio(random.Pick<int64_t>({0, 1, 2, 3, 4, 8})),
        window(1 + random.Below(100)),
        topk(1 + random.Below(40)),
        rotary(2 * random.Below(width / 2 + 1)),
        dtype(of),
        has_sinks(random.Below(4) > 0) {
    for (int64_t i = 0; i < batch; ++i) {
      const auto keys = static_cast<int32_t>(1 + random.Below(400));
      const auto own = static_cast<int32_t>(1 + random.Below(std::min(keys, 15)));
      sequences.push_back({.row_begin = static_cast<int32_t>(rows), .rows = own, .kv_len = keys});
      rows += own;
    }
    SetPages(random);
    const auto stored = [&](int64_t count, int64_t bytes_each) {
      std::vector<std::byte> bytes(count * bytes_each);
      for (int64_t i = 0; i < count; ++i)
        WriteCacheRow(dtype, OnGrid(random.Normal(width)).data(), width, &bytes[i * bytes_each]);
      return bytes;
    };
    span = EntrySpan(std::max<int64_t>(ratio, 1));
    stride = CacheRowBytes(dtype, width) + 16 * random.Below(2);
    cache = stored(slots, CacheRowBytes(dtype, width));
    entries = stored(slots / span, stride);
    q = OnGrid(random.Normal(rows * heads * width));
    weights = OnGrid(random.Normal(rows * heads));
    sinks = random.Normal(heads);
    cos_sin = random.Normal(400 * rotary);
  }

  void SetPages(Random& random) {
    int32_t count = 0;
    for (const SequenceSpan& s : sequences) count += (s.kv_len + page_size - 1) / page_size;
    const std::vector<int32_t> all = random.Shuffled(count);
    pages.clear();
    auto next = all.begin();
    for (SequenceSpan& s : sequences) {
      const int32_t own = (s.kv_len + page_size - 1) / page_size;
      pages.emplace_back(next, next + own);
      next += own;
      s.pages = pages.back().data();
    }
    slots = int64_t{count} * page_size;
  }
};

// The arrays of Cached in the memory of a device.
class OnDevice {
 public:
  OnDevice(Device& device, const Cached& c)
      : device_(device),
        c_(c),
        cache_(device, c.cache),
        entries_(device, c.entries),
        q_(device, c.q),
        weights_(device, c.weights),
        sinks_(device, c.sinks),
        cos_sin_(device, c.cos_sin),
        selected_(device, std::vector<int32_t>(c.rows * c.topk, -1)),
        out_(device, std::vector<float>(c.rows * c.heads * c.width)),
        sequences_(device.MakeSequences()) {}

  void Set(std::span<const SequenceSpan> sequences) { sequences_->Set(sequences, c_.page_size); }
  void Select() {
    if (c_.ratio == 0) return;
    device_.compressed()->SelectEntries({.q = q_.data(),
                                         .ldq = c_.heads * c_.width,
                                         .weights = weights_.data(),
                                         .entries = Places(),
                                         .heads = c_.heads,
                                         .width = c_.width,
                                         .ratio = c_.ratio,
                                         .topk = c_.topk,
                                         .selected = selected_.data()},
                                        *sequences_);
  }
  void Attend(bool selected) {
    device_.compressed()->AttendToEntries({.q = q_.data(),
                                           .ldq = c_.heads * c_.width,
                                           .cache = cache_.data(),
                                           .dtype = c_.dtype,
                                           .heads = c_.heads,
                                           .width = c_.width,
                                           .window = c_.window,
                                           .entries = c_.ratio > 0 ? Places() : EntryPlaces(),
                                           .ratio = c_.ratio,
                                           .selected = selected ? selected_.data() : nullptr,
                                           .topk = c_.topk,
                                           .sinks = c_.has_sinks ? sinks_.data() : nullptr,
                                           .scale = 0.2f,
                                           .cos_sin = cos_sin_.data(),
                                           .rotary_dim = c_.rotary,
                                           .out = out_.data(),
                                           .ldo = c_.heads * c_.width},
                                          *sequences_);
  }
  std::vector<int32_t> selected() const { return selected_.Read(); }
  std::vector<float> out() const { return out_.Read(); }

 private:
  EntryPlaces Places() const {
    return {.data = entries_.data(), .stride = c_.stride, .span = c_.span, .dtype = c_.dtype};
  }

  Device& device_;
  const Cached& c_;
  DeviceVector<std::byte> cache_, entries_;
  DeviceVector<float> q_, weights_, sinks_, cos_sin_;
  DeviceVector<int32_t> selected_;
  DeviceVector<float> out_;
  std::unique_ptr<PassSequences> sequences_;
};

TEST_F(GpuEntriesTest, SelectionAndAttentionMatchTheCpu) {
  for (int round = 0; round < 60; ++round) {
    Device& device = round % 2 == 0 ? *exact_ : *fast_;
    const Cached c(random_, kDTypes[round / 2 % 3], 1 + random_.Below(4));
    SCOPED_TRACE(::testing::Message() << "round " << round << " width " << c.width << " ratio "
                                      << c.ratio << " heads " << c.heads << " topk " << c.topk);
    OnDevice cpu(*cpu_, c), gpu(device, c);
    for (OnDevice* on : {&cpu, &gpu}) {
      on->Set(c.sequences);
      on->Select();
    }
    const std::vector<int32_t> want = cpu.selected(), got = gpu.selected();
    for (const SequenceSpan& s : c.sequences)
      for (int32_t row = 0; c.ratio > 0 && row < s.rows; ++row) {
        const int64_t all = EntriesAt(s.kv_len - s.rows + row, c.ratio);
        const int64_t begin = (s.row_begin + row) * c.topk;
        if (all > c.topk) {
          ASSERT_TRUE(std::equal(&want[begin], &want[begin] + c.topk, &got[begin])) << row;
        } else {
          for (int64_t e = 0; e < all; ++e) ASSERT_EQ(got[begin + e], e);
        }
      }
    for (const bool selected : {true, false}) {
      for (OnDevice* on : {&cpu, &gpu}) on->Attend(selected);
      const std::vector<float> a = cpu.out(), b = gpu.out();
      ExpectNear(b.data(), a.data(), std::ssize(a), 1e-4);
    }
  }
}

// Bits of a row do not depend on the batch, and a captured pass reads the sequences set last.
TEST_F(GpuEntriesTest, ACapturedPassHasTheBitsOfSingleRows) {
  for (int round = 0; round < 6; ++round) {
    const Cached c(random_, kDTypes[round % 3], 3);
    OnDevice whole(*exact_, c), one_by_one(*exact_, c), captured(*exact_, c);
    whole.Set(c.sequences);
    whole.Select();
    whole.Attend(true);
    const std::vector<float> want = whole.out();
    std::vector<SequenceSpan> first;  // the first row of each sequence, then its second row, …
    std::vector<float> got(want.size());
    for (int32_t row = 0; row < 15; ++row) {
      std::vector<SequenceSpan> now;
      for (const SequenceSpan& s : c.sequences) {
        const bool has = row < s.rows;
        now.push_back({.row_begin = s.row_begin + (has ? row : 0),
                       .rows = has ? 1 : 0,
                       .kv_len = s.kv_len - s.rows + (has ? row : 0) + (has ? 1 : 0),
                       .pages = s.pages});
      }
      // The end of the last sequence's rows is part of a graph's key.
      now.push_back({.row_begin = static_cast<int32_t>(c.rows)});
      captured.Set(now);
      exact_->Run(100 + round, [&] {
        captured.Select();
        captured.Attend(true);
      });
      const std::vector<float> out = captured.out();
      for (const SequenceSpan& s : now) {
        const int64_t begin = s.row_begin * c.heads * c.width;
        if (s.rows > 0) std::copy_n(&out[begin], c.heads * c.width, &got[begin]);
      }
    }
    EXPECT_TRUE(SameBits(got, want)) << round;
  }
}

}  // namespace
}  // namespace switchyard::kernels
