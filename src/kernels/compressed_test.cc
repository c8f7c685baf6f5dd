// Compressed entries against plain sums over whole blocks.
#include "kernels/compressed.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/cache_rows.h"
#include "kernels/testing.h"

namespace switchyard::kernels {
namespace {

constexpr float kEps = 1e-6f;

// One sequence of `rows` positions, whose pages are in a random order.
struct Blocks {
  int64_t rows, width, ratio, rotary;
  bool overlaps;
  int32_t page_size = 4;
  std::vector<float> values, gates, bias, norm, cos_sin, states, scratch;
  std::vector<int32_t> positions, slots, pages;
  std::vector<char> cache;

  Blocks(Random& random, int64_t ratio_, bool overlaps_)
      : rows(1 + random.Below(60)),
        width(2 + random.Below(150)),
        ratio(ratio_),
        rotary(2 * (1 + random.Below(width / 2))),
        overlaps(overlaps_),
        values(random.Normal(rows * ld())),
        gates(random.Normal(rows * ld(), 2.0f)),
        bias(random.Normal(ratio * ld())),
        norm(random.Normal(width)),
        cos_sin(random.Normal(rows * rotary)),
        states(8 * CompressStateFloats(width, overlaps)),
        scratch(rows * width),
        positions(rows),
        pages(random.Shuffled(static_cast<int32_t>(CeilDiv(rows, page_size)))),
        cache(std::ssize(pages) * page_size * width * 4) {
    std::iota(positions.begin(), positions.end(), 0);
    for (int64_t i = 0; i < rows; ++i)
      slots.push_back(static_cast<int32_t>(pages[i / page_size] * page_size + i % page_size));
  }

  int64_t ld() const { return width * (overlaps ? 2 : 1); }
  EntryPlaces Places() {
    const int64_t span = EntrySpan(ratio);
    return {.data = cache.data(), .stride = span * width * 4, .span = span};
  }
  // Rows [first, first + count), from the state `from` to the state `to`.
  void Run(ThreadPool& pool, int64_t first, StateSpan span) {
    Compress({.rows = values.data() + first * ld(),
              .gates = gates.data() + first * ld(),
              .ld = ld(),
              .bias = bias.data(),
              .m = span.rows,
              .width = width,
              .ratio = ratio,
              .overlaps = overlaps,
              .positions = positions.data() + first,
              .slots = slots.data() + first,
              .states = states.data(),
              .state_stride = CompressStateFloats(width, overlaps),
              .sequences = &span,
              .num_sequences = 1,
              .norm = norm.data(),
              .eps = kEps,
              .cos_sin = cos_sin.data(),
              .rotary_dim = rotary,
              .scratch = scratch.data(),
              .to = Places()},
             pool);
  }
  std::vector<float> Entry(int64_t e) {
    std::vector<float> row(width);
    ReadCacheRow(DType::kF32, Places().Of(slots[(e + 1) * ratio - 1]), width, row.data());
    return row;
  }
  // Entry e in double.
  std::vector<double> Want(int64_t e) const {
    std::vector<double> entry(width);
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0, value = 0;
      const auto add = [&](int64_t row, int64_t column) {
        const double factor =
            std::exp(double{gates[row * ld() + column]} + bias[row % ratio * ld() + column]);
        sum += factor;
        value += factor * values[row * ld() + column];
      };
      for (int64_t j = 0; j < ratio; ++j) {
        if (overlaps && e > 0) add((e - 1) * ratio + j, c);
        add(e * ratio + j, c + (overlaps ? width : 0));
      }
      entry[c] = value / sum;
    }
    double squares = 0;
    for (const double x : entry) squares += x * x;
    for (int64_t c = 0; c < width; ++c)
      entry[c] *= norm[c] / std::sqrt(squares / static_cast<double>(width) + kEps);
    const float* table = cos_sin.data() + e * ratio * rotary;
    for (int64_t i = 0; i < rotary / 2; ++i) {
      double &a = entry[width - rotary + 2 * i], &b = entry[width - rotary + 2 * i + 1];
      const double x = a, y = b;
      a = x * table[i] - y * table[rotary / 2 + i];
      b = y * table[i] + x * table[rotary / 2 + i];
    }
    return entry;
  }
};

void ForEachKind(const std::function<void(Random&, int64_t, bool)>& test) {
  Random random(5);
  for (int round = 0; round < 4; ++round)
    for (const int64_t ratio : {1, 3, 4, 6, 16})
      for (const bool overlaps : {false, true}) test(random, ratio, overlaps);
}

TEST(CompressedTest, EntriesAreSoftmaxSumsOfWholeBlocks) {
  ThreadPool pool(2);
  ForEachKind([&](Random& random, int64_t ratio, bool overlaps) {
    Blocks b(random, ratio, overlaps);
    b.Run(pool, 0, {.rows = static_cast<int32_t>(b.rows), .to = 0});
    for (int64_t e = 0; e < b.rows / ratio; ++e) {
      const std::vector<float> got = b.Entry(e);
      const std::vector<double> want = b.Want(e);
      for (int64_t c = 0; c < b.width; ++c) ASSERT_NEAR(got[c], want[c], 1e-4) << ratio << " " << e;
    }
  });
}

// Chunks, copies of states and threads do not change a bit.
TEST(CompressedTest, ChunksDoNotChangeEntries) {
  ThreadPool one(1), three(3);
  ForEachKind([&](Random& random, int64_t ratio, bool overlaps) {
    Blocks b(random, ratio, overlaps);
    b.Run(one, 0, {.rows = static_cast<int32_t>(b.rows), .to = 0});
    const std::vector<char> want = b.cache;
    std::ranges::fill(b.cache, char{0});
    int32_t from = -1;
    for (int64_t row = 0; row < b.rows;) {
      const auto count = static_cast<int32_t>(1 + random.Below(b.rows - row));
      const int32_t to = from == 1 ? 2 : 1;
      StateSpan span{.rows = count, .from = from, .to = to};
      // Continues from a copy in the middle, if there is one.
      const int32_t kept = count > 1 ? count / 2 : count;
      if (kept < count) span.copies[0] = {.rows = kept, .slot = 3 + to};
      b.Run(three, row, span);
      from = kept < count ? 3 + to : to;
      row += kept;
      if (from > 3) {  // a state that the next chunk does not overwrite
        const int64_t n = CompressStateFloats(b.width, overlaps);
        std::copy_n(b.states.begin() + from * n, n, b.states.begin() + to * n);
        from = to;
      }
    }
    EXPECT_TRUE(b.cache == want) << ratio;
  });
}

TEST(CompressedTest, AttendsToWindowAndSelectedEntries) {
  ThreadPool pool(3);
  Random random(9);
  for (int round = 0; round < 30; ++round) {
    const int64_t heads = 1 + random.Below(11), width = 2 + random.Below(40);
    const int64_t ratio = random.Pick<int64_t>({0, 1, 3, 4, 6});
    const int64_t window = 1 + random.Below(20), topk = 1 + random.Below(8);
    const int32_t keys = static_cast<int32_t>(1 + random.Below(70)), page_size = 4;
    const int32_t rows = static_cast<int32_t>(1 + random.Below(keys));
    const int64_t span = EntrySpan(std::max<int64_t>(ratio, 1)), rotary = 2 * (width / 2);
    const int64_t count = CeilDiv(keys, page_size);
    const std::vector<int32_t> pages = random.Shuffled(static_cast<int32_t>(count));
    const std::vector<float> cache = random.Normal(count * page_size * width);
    std::vector<float> entries = random.Normal(count * page_size / span * width);
    const std::vector<float> q = random.Normal(rows * heads * width);
    const std::vector<float> weights = random.Normal(rows * heads), sinks = random.Normal(heads);
    const std::vector<float> table = random.Normal(keys * rotary);
    const SequenceSpan spans[] = {{.rows = rows, .kv_len = keys, .pages = pages.data()}};
    const EntryPlaces places{.data = entries.data(), .stride = width * 4, .span = span};
    const auto entry = [&](int64_t e) {
      return static_cast<const float*>(places.Of(spans[0].SlotOf((e + 1) * ratio - 1, page_size)));
    };
    std::vector<int32_t> selected(rows * topk, -1);
    if (ratio > 0)
      SelectEntries({.q = q.data(),
                     .ldq = heads * width,
                     .weights = weights.data(),
                     .entries = places,
                     .heads = heads,
                     .width = width,
                     .ratio = ratio,
                     .topk = topk,
                     .page_size = page_size,
                     .sequences = spans,
                     .selected = selected.data()},
                    pool);
    std::vector<float> out(rows * heads * width);
    AttendToEntries({.q = q.data(),
                     .ldq = heads * width,
                     .cache = cache.data(),
                     .heads = heads,
                     .width = width,
                     .window = window,
                     .entries = places,
                     .ratio = ratio,
                     .selected = selected.data(),
                     .topk = topk,
                     .sinks = sinks.data(),
                     .scale = 0.3f,
                     .cos_sin = table.data(),
                     .rotary_dim = rotary,
                     .page_size = page_size,
                     .sequences = spans,
                     .out = out.data(),
                     .ldo = heads * width},
                    pool);
    const auto dot = [&](const float* a, const float* b) {
      return std::inner_product(a, a + width, b, 0.0);
    };
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t position = keys - rows + t;
      std::vector<int32_t> visible(ratio > 0 ? (position + 1) / ratio : 0);
      std::iota(visible.begin(), visible.end(), 0);
      if (std::ssize(visible) > topk) {
        const auto score = [&](int32_t e) {
          double sum = 0;
          for (int64_t h = 0; h < heads; ++h)
            sum += weights[t * heads + h] *
                   std::max(0.0, dot(q.data() + (t * heads + h) * width, entry(e)));
          return sum;
        };
        std::ranges::stable_sort(visible, std::greater<>(), score);
        visible.resize(topk);
        std::ranges::sort(visible);
        const std::vector<int32_t> got(selected.begin() + t * topk,
                                       selected.begin() + (t + 1) * topk);
        ASSERT_EQ(got, visible);
      }
      std::vector<const float*> attended;
      for (int64_t j = std::max<int64_t>(0, position - window + 1); j <= position; ++j)
        attended.push_back(cache.data() + spans[0].SlotOf(j, page_size) * width);
      for (const int32_t e : visible) attended.push_back(entry(e));
      for (int64_t h = 0; h < heads; ++h) {
        double sum = std::exp(double{sinks[h]});
        std::vector<double> want(width);
        for (const float* row : attended) {
          const double p = std::exp(0.3 * dot(q.data() + (t * heads + h) * width, row));
          sum += p;
          for (int64_t c = 0; c < width; ++c) want[c] += p * row[c];
        }
        for (double& x : want) x /= sum;
        for (int64_t i = 0; i < rotary / 2; ++i) {
          const double cos = table[position * rotary + i];
          const double sin = table[position * rotary + rotary / 2 + i];
          double &a = want[width - rotary + 2 * i], &b = want[width - rotary + 2 * i + 1];
          const double x = a, y = b;
          a = x * cos + y * sin;
          b = y * cos - x * sin;
        }
        for (int64_t c = 0; c < width; ++c)
          ASSERT_NEAR(out[(t * heads + h) * width + c], want[c], 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::kernels
