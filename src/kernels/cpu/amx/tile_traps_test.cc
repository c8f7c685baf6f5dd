// Decodes instructions as assemblers encode them, and resumes the thread after an emulated one.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cpu/amx/emulated_tiles.h"
#include "kernels/cpu/amx/tiles.h"

namespace switchyard::kernels::cpu::amx {
namespace {

std::array<uint64_t, 16> Numbered() {
  std::array<uint64_t, 16> registers;
  for (int i = 0; i < 16; ++i) registers[i] = 0x1000 * (i + 1);
  return registers;
}

TileInstruction Decode(const std::vector<uint8_t>& code) {
  const auto registers = Numbered();
  const auto i = DecodeTileInstruction(code.data(), registers);
  EXPECT_TRUE(i.has_value());
  if (!i) return {};
  EXPECT_EQ(i->length, code.size());
  return *i;
}

// Encodings from GNU as 2.40 (`objdump -d`); the comments show its assembly text.
TEST(TileInstruction, MemoryIsFoundThroughRegisters) {
  // tileloadd (%rax,%rcx,1),%tmm4
  const auto plain = Decode({0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x08});
  EXPECT_EQ(plain.operation, TileOperation::kLoad);
  EXPECT_EQ(plain.tile, 4);
  EXPECT_EQ(plain.address, 0x1000u);
  EXPECT_EQ(plain.stride, 0x2000);
  // tileloadd 0x12345(%r13,%r14,4),%tmm7
  const auto far = Decode({0xc4, 0x82, 0x7b, 0x4b, 0xbc, 0xb5, 0x45, 0x23, 0x01, 0x00});
  EXPECT_EQ(far.tile, 7);
  EXPECT_EQ(far.address, 0xe000u + 0x12345);
  EXPECT_EQ(far.stride, 4 * 0xf000);
  // tilestored %tmm1,-0x40(%rsp,%r9,1)
  const auto store = Decode({0xc4, 0xa2, 0x7a, 0x4b, 0x4c, 0x0c, 0xc0});
  EXPECT_EQ(store.operation, TileOperation::kStore);
  EXPECT_EQ(store.tile, 1);
  EXPECT_EQ(store.address, 0x5000u - 0x40);
  EXPECT_EQ(store.stride, 0xa000);
  // ldtilecfg 0x40(%rbx)
  const auto config = Decode({0xc4, 0xe2, 0x78, 0x49, 0x43, 0x40});
  EXPECT_EQ(config.operation, TileOperation::kConfigure);
  EXPECT_EQ(config.address, 0x4040u);
  // ldtilecfg (%rsp)
  EXPECT_EQ(Decode({0xc4, 0xe2, 0x78, 0x49, 0x04, 0x24}).address, 0x5000u);
}

TEST(TileInstruction, PcRelativeAddressesAreDecoded) {
  // ldtilecfg 0x10(%rip)
  const std::vector<uint8_t> code = {0xc4, 0xe2, 0x78, 0x49, 0x05, 0x10, 0x00, 0x00, 0x00};
  EXPECT_EQ(Decode(code).address, reinterpret_cast<uint64_t>(code.data() + code.size()) + 0x10);
}

TEST(TileInstruction, ProductsNameTheirTiles) {
  // tdpbssd %tmm7,%tmm5,%tmm3: B, A, C
  const auto codes = Decode({0xc4, 0xe2, 0x43, 0x5e, 0xdd});
  EXPECT_EQ(codes.operation, TileOperation::kMultiplyInt8);
  EXPECT_EQ((std::array{codes.tile, codes.a, codes.b}), (std::array{3, 5, 7}));
  // tdpbf16ps %tmm6,%tmm4,%tmm0
  const auto pairs = Decode({0xc4, 0xe2, 0x4a, 0x5c, 0xc4});
  EXPECT_EQ(pairs.operation, TileOperation::kMultiplyBFloat16);
  EXPECT_EQ((std::array{pairs.tile, pairs.a, pairs.b}), (std::array{0, 4, 6}));
  // tilezero %tmm3, tilerelease
  const auto zero = Decode({0xc4, 0xe2, 0x7b, 0x49, 0xd8});
  EXPECT_EQ(zero.operation, TileOperation::kZero);
  EXPECT_EQ(zero.tile, 3);
  EXPECT_EQ(Decode({0xc4, 0xe2, 0x78, 0x49, 0xc0}).operation, TileOperation::kRelease);
}

TEST(TileInstruction, OthersAreNotDecoded) {
  const auto registers = Numbered();
  const std::vector<std::vector<uint8_t>> others = {
      {0x0f, 0x0b, 0, 0, 0, 0},              // ud2
      {0xc5, 0xf8, 0x77, 0, 0, 0},           // vzeroupper
      {0xc4, 0xe2, 0x79, 0x49, 0x04, 0x24},  // sttilecfg (%rsp)
      {0xc4, 0xe2, 0x42, 0x5e, 0xdd, 0},     // tdpbsud
      {0xc4, 0xe2, 0x79, 0x18, 0xc0, 0},     // vbroadcastss
  };
  for (const auto& code : others) {
    EXPECT_FALSE(DecodeTileInstruction(code.data(), registers).has_value());
  }
}

// c [16][16] = a [16][64] · b, computed with tiles. b [16][16][4]: b[k][n] are the four weights of
// output n for columns 4k to 4k + 3 of a.
std::vector<int32_t> Product(const std::vector<int8_t>& a, const std::vector<int8_t>& b) {
  TileConfig config = {.palette = 1};
  for (const int tile : {0, 5, 6}) {
    config.rows[tile] = kTileRows;
    config.bytes[tile] = kTileBytes;
  }
  std::vector<int32_t> c(kTileRows * kTileRows);
  Tiles tiles;
  tiles.Configure(config);
  tiles.Zero<0>();
  tiles.Load<5>(a.data(), kTileBytes);
  tiles.Load<6>(b.data(), kTileBytes);
  tiles.MultiplyInt8<0, 5, 6>();
  tiles.Store<0>(c.data(), kTileBytes);
  return c;
}

TEST(TileTraps, EachThreadHasItsTiles) {
  EmulateMissingTiles();
  constexpr int kThreads = 4;
  std::vector<std::vector<int32_t>> got(kThreads), want(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      std::vector<int8_t> a(kTileRows * kTileBytes), b(a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        a[i] = static_cast<int8_t>(i * 7 + seed * 31);
        b[i] = static_cast<int8_t>(i * 13 + seed * 57);
      }
      for (int m = 0; m < kTileRows; ++m) {
        for (int n = 0; n < kTileRows; ++n) {
          int32_t sum = 0;
          for (int k = 0; k < kTileBytes; ++k) {
            sum += a[m * kTileBytes + k] * b[(k / 4 * kTileRows + n) * 4 + k % 4];
          }
          want[seed].push_back(sum);
        }
      }
      got[seed] = Product(a, b);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, want);
}

TEST(TileTrapsDeathTest, OtherInstructionsStillRaiseSigill) {
  EmulateMissingTiles();
  EXPECT_EXIT(__builtin_trap(), ::testing::KilledBySignal(SIGILL), "");
}

}  // namespace
}  // namespace switchyard::kernels::cpu::amx
