#include "quant/ggml_panels.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "quant/ggml_blocks.h"

namespace switchyard {
namespace {

constexpr int kBlock = 32;        // columns of a block of Q4_0, Q8_0 and MXFP4
constexpr int kSuperBlock = 256;  // columns of a block of the K types and IQ4_XS
constexpr int kColumns = kPanelColumns;

// Packs the low nibbles of the codes [kColumns] into out->codes, two per byte.
void PutNibbles(const uint8_t* codes, PanelRow* out) {
  for (int j = 0; j < kColumns / 2; ++j)
    out->codes[j] = static_cast<uint8_t>((codes[2 * j] & 15) | (codes[2 * j + 1] & 15) << 4);
}

// Converts half `half` of a block of Q4_K, or of Q5_K if `fifth` is not null. `fifth` [32]: bit g
// of byte i is the fifth bit of column i of group g. Groups of 32 columns are stored in pairs, as
// the low and high nibbles of 32 bytes.
void PutKGroups(const uint8_t* block, const uint8_t* fifth, const uint8_t* nibbles, int half,
                PanelRow* out) {
  uint8_t codes[kColumns];
  for (int j = 0; j < kColumns; ++j) {
    const int column = half * kColumns + j, group = column / kBlock;
    const uint8_t byte = nibbles[group / 2 * kBlock + column % kBlock];
    codes[j] = group % 2 == 0 ? byte & 15 : byte >> 4;
    if (fifth == nullptr || (fifth[column % kBlock] >> group & 1) == 0) continue;
    uint8_t& bits = out->codes[kColumns / 2 + j / 32 * 4 + j % 8 / 2];
    bits = static_cast<uint8_t>(bits | 1 << (j % 32 / 8 * 2 + j % 2));
  }
  PutNibbles(codes, out);
  for (int i = 0; i < 4; ++i) {
    const GgmlScaleMin group = UnpackGgmlScaleMin(block + 4, half * 4 + i);
    out->scales[i] = static_cast<uint8_t>(group.scale);
    out->scales[4 + i] = static_cast<uint8_t>(group.min);
  }
  std::memcpy(out->scales + 8, block, 4);  // d, dmin
}

// Converts half `half` of a block of Q6_K.
void PutQ6K(const uint8_t* block, int half, PanelRow* out) {
  const uint8_t *low = block + half * 64, *high = block + 128 + half * 32;
  uint8_t codes[kColumns];
  for (int j = 0; j < kColumns; ++j) {
    const int group = j / kBlock, column = j % kBlock;
    const uint8_t l = low[group % 2 * kBlock + column];
    codes[j] =
        static_cast<uint8_t>((group < 2 ? l & 15 : l >> 4) | (high[column] >> 2 * group & 3) << 4);
  }
  PutNibbles(codes, out);
  uint8_t* bits = out->codes + kColumns / 2;
  for (int j = 0; j < kColumns; ++j) {
    const int shift = 2 * (j % 16 / 8 * 2 + j % 2);
    uint8_t& byte = bits[j / 16 * 4 + j % 8 / 2];
    byte = static_cast<uint8_t>(byte | (codes[j] >> 4) << shift);
  }
  std::memcpy(out->scales, block + 192 + half * 8, 8);
  std::memcpy(out->scales + 8, block + 208, 2);
}

// Converts half `half` of a block of IQ4_XS.
void PutIQ4XS(const uint8_t* block, int half, PanelRow* out) {
  constexpr int kGroups = kColumns / kBlock;
  uint16_t high;  // high two bits of the scales
  std::memcpy(&high, block + 2, sizeof high);
  for (int i = 0; i < kGroups; ++i) {
    const int group = half * kGroups + i;
    const int low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    out->scales[i] = static_cast<uint8_t>((low | (high >> 2 * group & 3) << 4) - 32);
    ReorderGgmlNibbles(block + 8 + group * (kBlock / 2), out->codes + i * (kBlock / 2));
  }
  std::memcpy(out->scales + kGroups, block, 2);  // d
}

// Converts a block of 32 columns, which is block i of its part.
void PutBlock(uint32_t type, const uint8_t* block, int i, PanelRow* out) {
  switch (type) {
    case kGgmlQ8_0:
      std::memcpy(out->scales + 2 * i, block, 2);
      for (int j = 0; j < kBlock; ++j)
        out->codes[i * kBlock + j / 8 * 8 + j % 2 * 4 + j % 8 / 2] = block[2 + j] ^ 0x80;
      return;
    case kGgmlQ4_0:
      std::memcpy(out->scales + 2 * i, block, 2);
      return ReorderGgmlNibbles(block + 2, out->codes + i * kBlock / 2);
    default:  // MXFP4
      out->scales[i] = block[0];
      return ReorderGgmlNibbles(block + 1, out->codes + i * kBlock / 2);
  }
}

}  // namespace

WeightFormat PanelFormatOfGgml(const GgmlType& type) {
  switch (type.id) {
    case kGgmlQ4_0:
      return WeightFormat::kQ4_0Panels;
    case kGgmlQ8_0:
      return WeightFormat::kQ8_0Panels;
    case kGgmlQ4_K:
      return WeightFormat::kQ4KPanels;
    case kGgmlQ5_K:
      return WeightFormat::kQ5KPanels;
    case kGgmlQ6_K:
      return WeightFormat::kQ6KPanels;
    case kGgmlIQ4_XS:
      return WeightFormat::kIQ4XSPanels;
    case kGgmlMXFP4:
      return WeightFormat::kMxfp4Panels;
    default:
      return WeightFormat::kF32;
  }
}

PanelRow PanelRowOfGgml(const GgmlType& type, const uint8_t* row, int64_t begin, int64_t end) {
  PanelRow out{};
  const uint8_t* block = row + begin / type.block_size * type.block_bytes;
  if (type.block_size == kSuperBlock) {
    const int half = static_cast<int>(begin % kSuperBlock) / kColumns;
    if (type.id == kGgmlQ4_K) PutKGroups(block, nullptr, block + 16, half, &out);
    if (type.id == kGgmlQ5_K) PutKGroups(block, block + 16, block + 48, half, &out);
    if (type.id == kGgmlQ6_K) PutQ6K(block, half, &out);
    if (type.id == kGgmlIQ4_XS) PutIQ4XS(block, half, &out);
    return out;
  }
  const auto blocks = static_cast<int>(CeilDiv(std::min<int64_t>(end - begin, kColumns), kBlock));
  for (int i = 0; i < blocks; ++i, block += type.block_bytes) PutBlock(type.id, block, i, &out);
  return out;
}

}  // namespace switchyard
