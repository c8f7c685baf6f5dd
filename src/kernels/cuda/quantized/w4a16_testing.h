// Packed weights for tests, with the same weights expanded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "kernels/testing.h"

namespace switchyard::cuda {

// Views that W4A16FormatOf supports, with a wide range of scales.
struct W4A16Case {
  std::string name;
  WeightFormat format;
  int32_t group_size;  // kInt4Group
  bool symmetric;
};
inline std::vector<W4A16Case> W4A16Cases() {
  return {{"Mxfp4", WeightFormat::kMxfp4, 0, false},
          {"Nvfp4", WeightFormat::kNvfp4, 0, false},
          {"Int4By128", WeightFormat::kInt4Group, 128, true},
          {"Int4By64Zeros", WeightFormat::kInt4Group, 64, false},
          {"Int4By32Zeros", WeightFormat::kInt4Group, 32, false},
          {"Int4By96", WeightFormat::kInt4Group, 96, true},
          {"Int4By16Zeros", WeightFormat::kInt4Group, 16, false}};
}

// Random codes, scales and zero points; `keep` owns the memory.
inline WeightView AnyW4A16Weight(const W4A16Case& c, int64_t n, int64_t k, int64_t row0,
                                 int64_t row_step, int64_t col0, kernels::Random& random,
                                 std::vector<std::vector<uint8_t>>* keep) {
  const int64_t rows = row0 + n * row_step, columns = CeilDiv(col0 + k, 32) * 32;
  std::mt19937 engine(static_cast<unsigned>(random.Below(1 << 30)));
  const auto fill = [&](int64_t count, auto make) {
    std::vector<uint8_t>& bytes = keep->emplace_back(count);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(make());
    return bytes.data();
  };
  WeightView w;
  w.format = c.format;
  w.data = fill(rows * columns / 2, [&] { return engine(); });
  if (c.format == WeightFormat::kMxfp4) {
    w.scales = fill(rows * columns / kMxfp4BlockSize,
                    [&] { return engine() % 3 ? 115 + engine() % 12 : engine() % 129; });
  } else if (c.format == WeightFormat::kNvfp4) {
    w.scales = fill(rows * columns / kNvfp4BlockSize, [&] {
      const uint32_t code = engine() & 0xff;
      return (code & 0x7f) == 0x7f ? 0x7e : code;  // no NaN
    });
    w.global_scale = random.Pick({0x1.234568p-13f, 0x1p-100f, 0x1p-7f, 3e-5f});
  } else {
    const int64_t groups = rows * CeilDiv(columns, c.group_size);
    uint8_t* scales = fill(groups * 4, [] { return 0; });
    for (int64_t i = 0; i < groups; ++i) {
      const float magnitude = random.Pick({1e-2f, 1.0f, 1e-30f, 1e10f});
      const float scale = (static_cast<float>(engine() % 20001) * 1e-4f - 1.0f) * magnitude;
      std::memcpy(scales + i * 4, &scale, sizeof(scale));
    }
    w.scales = scales;
    w.group_size = c.group_size;
    if (!c.symmetric) w.zeros = fill(groups, [&] { return engine() % 17; });
  }
  w.stored_k = columns;
  w.row0 = row0;
  w.row_step = row_step;
  w.col0 = col0;
  w.n = n;
  w.k = k;
  return w;
}

// Bits of the view's values as bfloat16: the weights of a GEMM without packing.
inline void AppendExpanded(const WeightView& w, std::vector<uint16_t>* bits) {
  std::vector<float> row(w.k);
  for (int64_t i = 0; i < w.n; ++i) {
    DequantizeRow(w, i, 0, w.k, row.data());
    for (const float x : row) bits->push_back(ToBF16(x).bits);
  }
}

// Matrices of two stacked parts each, packed and expanded.
struct PackedMatrices {
  PackedMatrices(const W4A16Case& c, int matrices, int64_t part_rows, int64_t k, unsigned seed)
      : n(2 * part_rows), k(k) {
    kernels::Random random(seed);
    ThreadPool pool(2);
    std::vector<WeightView> views;
    for (int i = 0; i < 2 * matrices; ++i) {
      views.push_back(AnyW4A16Weight(c, part_rows, k, random.Below(5), 1 + random.Below(2),
                                     random.Pick<int64_t>({0, 192, 64 * 9}), random, &kept_));
      AppendExpanded(views.back(), &expanded);
    }
    std::vector<const WeightView*> pointers;
    for (const WeightView& w : views) pointers.push_back(&w);
    const std::optional<W4A16Format> found = W4A16FormatOf(pointers, 2);
    EXPECT_TRUE(found.has_value());
    format = found.value_or(W4A16Format{});
    const int64_t bytes = W4A16Bytes(format, n, k), tiles = W4A16RowTiles(n);
    records.assign(matrices * bytes, std::byte{0xa5});
    globals.assign(matrices * tiles, 0.0f);
    for (int i = 0; i < matrices; ++i)
      PackW4A16(format, std::span(pointers).subspan(2 * i, 2), records.data() + i * bytes,
                globals.data() + i * tiles, pool);
  }

  int64_t n, k;
  W4A16Format format;
  std::vector<std::byte> records;
  std::vector<float> globals;
  std::vector<uint16_t> expanded;  // [matrices, n, k] bfloat16

 private:
  std::vector<std::vector<uint8_t>> kept_;
};

}  // namespace switchyard::cuda
