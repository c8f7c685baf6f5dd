// Compares the emulation with a second, independent implementation of the manual's operations.
#include "kernels/cpu/amx/emulated_tiles.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/ops.h"

namespace switchyard::kernels::cpu::amx {
namespace {

struct Shape {
  int m, n, k;  // rows and columns of C, groups of four bytes along K
};
constexpr Shape kShapes[] = {{16, 16, 16}, {1, 16, 16}, {7, 3, 5}, {16, 1, 16}, {5, 16, 1}};

// Tile 0 is C, 1 is A, 2 is B.
TileConfig ConfigOf(const Shape& s) {
  TileConfig config = {.palette = 1};
  const auto use = [&](int tile, int rows, int groups) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.bytes[tile] = static_cast<uint16_t>(4 * groups);
  };
  use(0, s.m, s.n);
  use(1, s.m, s.k);
  use(2, s.k, s.n);
  return config;
}

// C += A · B for dense matrices; `multiply` is the instruction.
void AddProduct(const Shape& s, const void* a, const void* b, void* c, const auto& multiply) {
  EmulatedTiles tiles;
  tiles.Configure(ConfigOf(s));
  tiles.Load(0, c, 4 * s.n);
  tiles.Load(1, a, 4 * s.k);
  tiles.Load(2, b, 4 * s.n);
  multiply(tiles);
  tiles.Store(0, c, 4 * s.n);
}

std::vector<uint8_t> RandomBytes(std::mt19937& random, int count) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

TEST(EmulatedTiles, Int8ProductsAreSumsOfProducts) {
  std::mt19937 random(1);
  for (const Shape& s : kShapes) {
    const auto a = RandomBytes(random, 4 * s.m * s.k), b = RandomBytes(random, 4 * s.k * s.n);
    std::vector<int32_t> c(s.m * s.n);
    for (int32_t& x : c) x = static_cast<int32_t>(random() % 1000);
    std::vector<int32_t> want = c;
    for (int m = 0; m < s.m; ++m) {
      for (int n = 0; n < s.n; ++n) {
        for (int j = 0; j < 4 * s.k; ++j) {
          want[m * s.n + n] += static_cast<int8_t>(a[m * 4 * s.k + j]) *
                               static_cast<int8_t>(b[(j / 4 * s.n + n) * 4 + j % 4]);
        }
      }
    }
    AddProduct(s, a.data(), b.data(), c.data(),
               [](EmulatedTiles& tiles) { tiles.MultiplyInt8(0, 1, 2); });
    EXPECT_EQ(c, want) << s.m << " " << s.n << " " << s.k;
  }
}

// Float32 multiply-add with one rounding, computed in double: exact for the numbers below, whose
// exponents are close together.
float MultiplyAdd(uint16_t a, uint16_t b, float c) {
  return static_cast<float>(double{ToFloat(BF16{a})} * ToFloat(BF16{b}) + c);
}

TEST(EmulatedTiles, BFloat16ProductsSumEvenAndOddApart) {
  std::mt19937 random(2);
  std::uniform_int_distribution<int> small(-128, 127);
  const auto number = [&] {
    return std::bit_cast<uint16_t>(ToBF16(static_cast<float>(small(random)) / 64));
  };
  for (const Shape& s : kShapes) {
    std::vector<uint16_t> a(2 * s.m * s.k), b(2 * s.k * s.n);
    for (uint16_t& x : a) x = number();
    for (uint16_t& x : b) x = number();
    std::vector<float> c(s.m * s.n);
    // Large values, so that the order of additions is visible.
    for (float& x : c) x = static_cast<float>(small(random)) * 1e5f + 0.03f;
    std::vector<float> want = c;
    for (int m = 0; m < s.m; ++m) {
      for (int n = 0; n < s.n; ++n) {
        float sums[2] = {};
        for (int j = 0; j < 2 * s.k; ++j) {
          sums[j % 2] =
              MultiplyAdd(a[m * 2 * s.k + j], b[(j / 2 * s.n + n) * 2 + j % 2], sums[j % 2]);
        }
        want[m * s.n + n] += sums[0] + sums[1];
      }
    }
    AddProduct(s, a.data(), b.data(), c.data(),
               [](EmulatedTiles& tiles) { tiles.MultiplyBFloat16(0, 1, 2); });
    EXPECT_EQ(c, want) << s.m << " " << s.n << " " << s.k;
  }
}

// Returns x · y + c, computed by one emulated instruction.
float OneProduct(float x, float y, float c) {
  const uint32_t a = std::bit_cast<uint16_t>(ToBF16(x)), b = std::bit_cast<uint16_t>(ToBF16(y));
  AddProduct({1, 1, 1}, &a, &b, &c, [](EmulatedTiles& tiles) { tiles.MultiplyBFloat16(0, 1, 2); });
  return c;
}

TEST(EmulatedTiles, SmallNumbersAreFlushed) {
  EXPECT_EQ(OneProduct(3, 5, 1), 16);
  EXPECT_EQ(OneProduct(0x1p-70f, 0x1p-70f, 0), 0);   // subnormal result
  EXPECT_EQ(OneProduct(0x1p-130f, 0x1p100f, 0), 0);  // subnormal operand
  EXPECT_EQ(OneProduct(0, 0, 0x1p-130f), 0);         // subnormal accumulator
  EXPECT_EQ(OneProduct(0x1p-60f, 0x1p-60f, 0), 0x1p-120f);
  const float tiny = 0x1p-130f;
  EXPECT_GT(tiny * 2, 0) << "MXCSR of the thread is restored";
}

void Configure(const TileConfig& config) {
  EmulatedTiles tiles;
  tiles.Configure(config);
}

void Multiply(const TileConfig& config) {
  EmulatedTiles tiles;
  tiles.Configure(config);
  tiles.MultiplyInt8(0, 1, 2);
}

void LoadWithoutConfiguration() {
  const int32_t word = 0;
  EmulatedTiles tiles;
  tiles.Load(1, &word, 4);
}

TEST(EmulatedTilesDeathTest, WhatFaultsIsRefused) {
  EXPECT_DEATH(LoadWithoutConfiguration(), "configured");
  TileConfig depths = ConfigOf({4, 4, 4});
  depths.rows[2] = 3;  // K of A and B differ
  EXPECT_DEATH(Multiply(depths), "rows");
  TileConfig half = {.palette = 1};
  half.rows[3] = 4;  // but no bytes per row
  EXPECT_DEATH(Configure(half), "bytes");
}

}  // namespace
}  // namespace switchyard::kernels::cpu::amx
