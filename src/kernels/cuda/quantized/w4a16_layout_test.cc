// Per-thread unpacking of packed weights, emulated without a GPU.
#include "kernels/cuda/quantized/w4a16_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/quantized/w4a16_testing.h"

namespace switchyard::cuda {
namespace {

// One thread's view of a record, like W4A16Tile on the GPU: the same addresses and integers, with
// float arithmetic instead of packed bfloat16 arithmetic.
struct EmulatedThread {
  W4A16Format format;
  const std::byte* record;
  float global;
  int thread;

  template <typename T>
  T Load(int64_t offset) const {
    T value;
    std::memcpy(&value, record + offset, sizeof(T));
    return value;
  }
  // Scale index of register `slot` in a run of 16 columns; odd slots are the lower row.
  int ScaleIndex(int run, int slot) const {
    return (W4A16RowPair(thread) * format.scales + run * format.scales / 4) * 2 + slot % 2;
  }
  static float Half(uint32_t pair, int half) {
    return ToFloat(BF16{static_cast<uint16_t>(pair >> (16 * half))});
  }

  uint16_t Unpack(int run, int slot, int half) const {
    const auto word = Load<uint32_t>((thread * 4 + run) * 4);
    const int at = ScaleIndex(run, slot);
    switch (format.kind) {
      case W4A16Kind::kMxfp4: {
        const uint32_t scale = W4A16ExponentPair(Load<uint8_t>(kW4A16CodeBytes + at));
        return ToBF16(Half(W4A16E2M1Pair(word, slot), half) * Half(scale, half)).bits;
      }
      case W4A16Kind::kNvfp4: {
        const float scale = ToFloat(F8E4M3{Load<uint8_t>(kW4A16CodeBytes + at)}) * global;
        return ToBF16(Half(W4A16E2M1Pair(word, slot), half) * scale).bits;
      }
      case W4A16Kind::kInt4: {
        const auto zero =
            Load<uint8_t>(kW4A16CodeBytes + kW4A16Tile * format.scales * sizeof(float) + at);
        const BF16 whole =
            ToBF16(Half(W4A16Int4Pair(word, slot), half) - Half(W4A16ZeroPair(zero), half));
        const auto scale = Load<float>(kW4A16CodeBytes + at * sizeof(float));
        return ToBF16(ToFloat(whole) * scale).bits;
      }
    }
    return 0;
  }
};

// Register contents, placed at the rows and columns that wgmma assigns to them: [matrices · row
// tiles · 64, column tiles · 64].
std::vector<uint16_t> UnpackAll(const PackedMatrices& m, int matrices) {
  const int64_t row_tiles = matrices * W4A16RowTiles(m.n), column_tiles = W4A16ColumnTiles(m.k);
  std::vector<uint16_t> bits(row_tiles * column_tiles * kW4A16Tile * kW4A16Tile, 0xffff);
  for (int64_t tile = 0; tile < row_tiles * column_tiles; ++tile)
    for (int thread = 0; thread < kW4A16Threads; ++thread) {
      const EmulatedThread t = {m.format, m.records.data() + tile * W4A16RecordBytes(m.format),
                                m.globals[tile / column_tiles], thread};
      for (int i = 0; i < 32; ++i) {
        // Row and column of a register in wgmma's m64k16 fragment (PTX ISA; w4a16_layout.h).
        const int run = i / 8, slot = i / 2 % 4, half = i % 2, lane = thread % 32;
        const int64_t row =
            tile / column_tiles * 64 + thread / 32 * 16 + lane / 4 + (slot % 2 == 1 ? 8 : 0);
        const int64_t column =
            tile % column_tiles * 64 + run * 16 + lane % 4 * 2 + half + (slot >= 2 ? 8 : 0);
        bits[row * column_tiles * 64 + column] = t.Unpack(run, slot, half);
      }
    }
  return bits;
}

TEST(W4A16Layout, EveryCodeOfATileHasOnePlaceOnly) {
  std::vector<int> seen(kW4A16CodeBytes * 2, 0);
  for (int row = 0; row < kW4A16Tile; ++row)
    for (int column = 0; column < kW4A16Tile; ++column) {
      const W4A16Position at = W4A16CodePosition(row, column);
      ++seen[(at.thread * 4 + at.run) * 8 + at.shift / 4];
      const int slot = at.shift % 16 / 4;
      EXPECT_EQ(W4A16RowOf(at.thread, slot), row);
      EXPECT_EQ(at.run * 16 + W4A16ColumnOf(at.thread, slot) + at.shift / 16, column);
    }
  EXPECT_EQ(std::ranges::count(seen, 1), kW4A16CodeBytes * 2);
}

TEST(W4A16Layout, EveryScaleOfATileHasOnePlaceOnly) {
  for (const int scales : {1, 2, 4}) {
    std::vector<int> seen(kW4A16Tile * scales, 0);
    for (int row = 0; row < kW4A16Tile; ++row)
      for (int i = 0; i < scales; ++i) ++seen[W4A16ScaleAt(row, i, scales)];
    EXPECT_EQ(std::ranges::count(seen, 1), kW4A16Tile * scales);
  }
}

TEST(W4A16Layout, RecordsAreWhatTheCopyEngineTakes) {
  for (const W4A16Format format :
       {W4A16Format{W4A16Kind::kMxfp4, 2}, W4A16Format{W4A16Kind::kNvfp4, 4},
        W4A16Format{W4A16Kind::kInt4, 1}, W4A16Format{W4A16Kind::kInt4, 2},
        W4A16Format{W4A16Kind::kInt4, 4}})
    EXPECT_EQ(W4A16RecordBytes(format) % 16, 0);
}

class W4A16Unpack : public ::testing::TestWithParam<W4A16Case> {};

TEST_P(W4A16Unpack, RegistersHoldTheBitsOfExpandedWeights) {
  kernels::Random random(3);
  for (int round = 0; round < 12; ++round) {
    constexpr int kMatrices = 2;
    // With NVFP4, the rows of each part must fill whole tiles of 64 rows.
    const int64_t part_rows = GetParam().format == WeightFormat::kNvfp4
                                  ? random.Pick<int64_t>({64, 128})
                                  : 1 + random.Below(150);
    const int64_t k = random.Pick<int64_t>({2, 8, 40, 64, 72, 128, 200, 320});
    const PackedMatrices m(GetParam(), kMatrices, part_rows, k, round);
    const std::vector<uint16_t> got = UnpackAll(m, kMatrices);
    const int64_t rows = W4A16RowTiles(m.n) * 64, columns = W4A16ColumnTiles(k) * 64;
    for (int64_t matrix = 0; matrix < kMatrices; ++matrix)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) {
          const uint16_t bits = got[(matrix * rows + i) * columns + j];
          if (i < m.n && j < k) {
            ASSERT_EQ(bits, m.expanded[(matrix * m.n + i) * k + j])
                << "row " << i << " of " << m.n << ", column " << j << " of " << k;
          } else if (i >= m.n) {
            ASSERT_EQ(bits & 0x7fff, 0) << "beyond row " << m.n;
          }
        }
  }
}

TEST_P(W4A16Unpack, EveryCodeAndScaleGivesTheExpandedBits) {
  // One row with every code for each scale that a byte can hold (kInt4: each zero point).
  const WeightFormat format = GetParam().format;
  const bool int4 = format == WeightFormat::kInt4Group;
  const int64_t columns = int4                             ? GetParam().group_size
                          : format == WeightFormat::kMxfp4 ? kMxfp4BlockSize
                                                           : kNvfp4BlockSize;
  std::vector<uint8_t> scales, zeros;
  std::vector<float> floats;
  for (int byte = 0; byte < 256; ++byte) {
    if (format == WeightFormat::kMxfp4 && byte > 128) continue;
    if (format == WeightFormat::kNvfp4 && (byte & 0x7f) == 0x7f) continue;
    if (int4 && byte > kW4A16MaxZero) continue;
    (int4 ? zeros : scales).push_back(static_cast<uint8_t>(byte));
    floats.push_back(0.7f + 0.01f * static_cast<float>(byte));
  }
  const int64_t k = columns * std::ssize(floats);
  std::vector<uint8_t> codes(k / 2);
  for (int64_t j = 0; j < k / 2; ++j)
    codes[j] = static_cast<uint8_t>(j * 2 % 16 | (j * 2 + 1) % 16 << 4);
  WeightView w;
  w.format = format;
  w.data = codes.data();
  w.scales = int4 ? static_cast<const void*>(floats.data()) : scales.data();
  w.zeros = int4 ? zeros.data() : nullptr;
  w.group_size = GetParam().group_size;
  w.global_scale = 0x1.654321p-12f;
  w.n = 1;
  w.k = w.stored_k = k;
  const WeightView* const one[] = {&w};
  const std::optional<W4A16Format> format_found = W4A16FormatOf(one);
  ASSERT_TRUE(format_found.has_value());
  std::vector<std::byte> records(W4A16Bytes(*format_found, 1, k));
  std::vector<float> globals(1);
  ThreadPool pool(1);
  PackW4A16(*format_found, one, records.data(), globals.data(), pool);
  std::vector<uint16_t> expanded;
  AppendExpanded(w, &expanded);
  for (int64_t j = 0; j < k; ++j) {
    const W4A16Position at = W4A16CodePosition(0, static_cast<int>(j % 64));
    const EmulatedThread t = {*format_found,
                              records.data() + j / 64 * W4A16RecordBytes(*format_found), globals[0],
                              at.thread};
    ASSERT_EQ(t.Unpack(at.run, at.shift % 16 / 4, at.shift / 16), expanded[j])
        << "scale " << j / columns << ", code " << j % 16;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, W4A16Unpack, ::testing::ValuesIn(W4A16Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(W4A16Pack, ViewsThatWouldLoseBitsAreNotPacked) {
  kernels::Random random(1);
  std::vector<std::vector<uint8_t>> keep;
  const auto weight = [&](WeightFormat format, int32_t group_size, int64_t col0 = 0) {
    return AnyW4A16Weight({"", format, group_size, false}, 64, 128, 0, 1, col0, random, &keep);
  };
  const auto format_of = [](const WeightView& w, int parts = 1) {
    const WeightView* const views[] = {&w};
    return W4A16FormatOf(views, parts);
  };
  WeightView w = weight(WeightFormat::kMxfp4, 0);
  EXPECT_EQ(format_of(w), (W4A16Format{W4A16Kind::kMxfp4, 2}));
  std::vector<uint8_t> exponents(64 * 128 / 32, 120);
  exponents[17] = 129;
  w.scales = exponents.data();
  EXPECT_EQ(format_of(w), std::nullopt);
  EXPECT_EQ(format_of(w.Rows(5, 64)), (W4A16Format{W4A16Kind::kMxfp4, 2}));
  EXPECT_EQ(format_of(weight(WeightFormat::kMxfp4, 0, 16)), std::nullopt);

  w = weight(WeightFormat::kNvfp4, 0, 16);
  EXPECT_EQ(format_of(w, 2), (W4A16Format{W4A16Kind::kNvfp4, 4}));
  EXPECT_EQ(format_of(w.Rows(0, 60), 2), std::nullopt);
  std::vector<uint8_t> scales(64 * 160 / 16, 0x70);  // 128 in e4m3
  w.scales = scales.data();
  w.global_scale = 0.01f;
  EXPECT_EQ(format_of(w), (W4A16Format{W4A16Kind::kNvfp4, 4}));
  scales[30 * 10 + 5] = 0xfe;  // −448 in e4m3
  EXPECT_EQ(format_of(w), std::nullopt);
  w.global_scale = 0.008f;
  EXPECT_EQ(format_of(w), (W4A16Format{W4A16Kind::kNvfp4, 4}));
  w.global_scale = 0.0f;
  EXPECT_EQ(format_of(w), std::nullopt);

  w = weight(WeightFormat::kInt4Group, 128);
  EXPECT_EQ(format_of(w), (W4A16Format{W4A16Kind::kInt4, 1}));
  EXPECT_EQ(format_of(weight(WeightFormat::kInt4Group, 128, 32)),
            (W4A16Format{W4A16Kind::kInt4, 2}));
  EXPECT_EQ(format_of(weight(WeightFormat::kInt4Group, 24)), std::nullopt);
  std::vector<uint8_t> zeros(64, 8);
  zeros[40] = 128;
  w.zeros = zeros.data();
  EXPECT_EQ(format_of(w), std::nullopt);
  EXPECT_EQ(format_of(weight(WeightFormat::kBF16, 16)), std::nullopt);
  const WeightView fine = weight(WeightFormat::kInt4Group, 32),
                   other = weight(WeightFormat::kMxfp4, 0);
  const WeightView coarse = weight(WeightFormat::kInt4Group, 128);
  const WeightView* const both[] = {&coarse, &fine};
  EXPECT_EQ(W4A16FormatOf(both), (W4A16Format{W4A16Kind::kInt4, 2}));
  const WeightView* const mixed[] = {&fine, &other};
  EXPECT_EQ(W4A16FormatOf(mixed), std::nullopt);
}

}  // namespace
}  // namespace switchyard::cuda
