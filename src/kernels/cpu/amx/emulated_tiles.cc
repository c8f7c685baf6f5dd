#include "kernels/cpu/amx/emulated_tiles.h"

#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace switchyard::kernels::cpu::amx {
namespace {

constexpr int kWords = kTileBytes / 4;

// TDPBF16PS flushes subnormal inputs and results to zero, rounds to nearest, and ignores MXCSR.
// This object sets MXCSR accordingly for its lifetime.
class TileArithmetic {
 public:
  TileArithmetic() : saved_(_mm_getcsr()) {
    constexpr uint32_t kFlushBothMaskAll = 0x9fc0;
    _mm_setcsr(kFlushBothMaskAll);
  }
  ~TileArithmetic() { _mm_setcsr(saved_); }
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;

 private:
  const uint32_t saved_;
};

float Low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float High(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

// Adds the products of one row of C. Not inlined: its arithmetic must not move out of a
// TileArithmetic's lifetime.
[[gnu::noinline]] void AddPairs(const uint32_t* a, int pairs, const uint32_t (*b)[kWords],
                                int columns, uint32_t* c) {
  float first[kWords] = {}, second[kWords] = {};
  for (int k = 0; k < pairs; ++k) {
    for (int n = 0; n < columns; ++n) {
      first[n] = std::fma(Low(a[k]), Low(b[k][n]), first[n]);
      second[n] = std::fma(High(a[k]), High(b[k][n]), second[n]);
    }
  }
  for (int n = 0; n < columns; ++n) {
    const float both = first[n] + second[n];
    c[n] = std::bit_cast<uint32_t>(std::bit_cast<float>(c[n]) + both);
  }
}

uint32_t FourProducts(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const int product = static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
    sum += static_cast<uint32_t>(product);
  }
  return sum;
}

}  // namespace

void EmulatedTiles::Configure(const TileConfig& config) {
  CHECK_EQ(config.palette, 1);
  CHECK_EQ(config.start_row, 0);
  for (const uint8_t byte : config.reserved) CHECK_EQ(byte, 0);
  for (int i = 0; i < 16; ++i) {
    const int rows = config.rows[i], bytes = config.bytes[i];
    CHECK_LE(rows, i < kTiles ? kTileRows : 0);
    CHECK_LE(bytes, i < kTiles ? kTileBytes : 0);
    CHECK_EQ(rows == 0, bytes == 0);
    if (i < kTiles) tiles_[i] = {.rows = rows, .bytes = bytes};
  }
  configured_ = true;
}

EmulatedTiles::Tile& EmulatedTiles::At(int tile) {
  CHECK(configured_);
  CHECK_GT(tiles_[tile].rows, 0);
  return tiles_[tile];
}

void EmulatedTiles::Zero(int tile) { std::memset(At(tile).words, 0, sizeof(Tile::words)); }

void EmulatedTiles::Load(int tile, const void* from, int64_t stride) {
  Zero(tile);
  Tile& t = At(tile);
  for (int r = 0; r < t.rows; ++r) {
    std::memcpy(t.words[r], static_cast<const char*>(from) + r * stride, t.bytes);
  }
}

void EmulatedTiles::Store(int tile, void* to, int64_t stride) {
  const Tile& t = At(tile);
  for (int r = 0; r < t.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, t.words[r], t.bytes);
  }
}

// CHECKs the shapes of the operands. Hardware raises #UD if they do not match.
void EmulatedTiles::CheckProduct(int c, int a, int b) {
  CHECK(c != a && c != b && a != b);
  for (const int tile : {c, a, b}) CHECK_EQ(At(tile).bytes % 4, 0);
  CHECK_EQ(At(c).rows, At(a).rows);
  CHECK_EQ(At(a).bytes / 4, At(b).rows);
  CHECK_EQ(At(c).bytes, At(b).bytes);
}

void EmulatedTiles::MultiplyInt8(int c, int a, int b) {
  CheckProduct(c, a, b);
  Tile& sums = tiles_[c];
  const Tile &left = tiles_[a], &right = tiles_[b];
  for (int m = 0; m < sums.rows; ++m) {
    for (int k = 0; k < left.bytes / 4; ++k) {
      for (int n = 0; n < sums.bytes / 4; ++n) {
        sums.words[m][n] += FourProducts(left.words[m][k], right.words[k][n]);
      }
    }
  }
}

void EmulatedTiles::MultiplyBFloat16(int c, int a, int b) {
  CheckProduct(c, a, b);
  Tile& sums = tiles_[c];
  const TileArithmetic arithmetic;
  for (int m = 0; m < sums.rows; ++m) {
    AddPairs(tiles_[a].words[m], tiles_[a].bytes / 4, tiles_[b].words, sums.bytes / 4,
             sums.words[m]);
  }
}

}  // namespace switchyard::kernels::cpu::amx
