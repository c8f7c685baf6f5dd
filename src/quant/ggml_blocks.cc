#include "quant/ggml_blocks.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/dtype.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

constexpr int kSuperBlock = 256;  // elements of a block of the K types

constexpr GgmlTypeId kReadable[] = {kGgmlF32,  kGgmlF16,  kGgmlBF16, kGgmlQ8_0,   kGgmlQ4_0,
                                    kGgmlQ4_K, kGgmlQ5_K, kGgmlQ6_K, kGgmlIQ4_XS, kGgmlMXFP4};

template <typename T>
T Load(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}
float LoadHalf(const uint8_t* data) { return ToFloat(Load<F16>(data)); }

template <typename T>
void Plain(const uint8_t* data, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = Load<T>(data + i * static_cast<int64_t>(sizeof(T)));
    if constexpr (std::is_same_v<T, float>) {
      out[i] = value;
    } else {
      out[i] = ToFloat(value);
    }
  }
}

void Q8_0(const uint8_t* b, float* out) {
  const float d = LoadHalf(b);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(b[2 + j]));
}

void Q4_0(const uint8_t* b, float* out) {
  const float d = LoadHalf(b);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((b[2 + j] & 15) - 8);
    out[j + 16] = d * static_cast<float>((b[2 + j] >> 4) - 8);
  }
}

void Mxfp4(const uint8_t* b, float* out) {
  const float d = FromE8M0(b[0]);
  for (int j = 0; j < 16; ++j) {
    out[j] = d * kE2M1[b[1 + j] & 15];
    out[j + 16] = d * kE2M1[b[1 + j] >> 4];
  }
}

// Dequantizes a block `b` of Q4_K, or of Q5_K if `high` is not null. `low`: the nibbles of the
// codes. `high` [32]: bit j of byte i is the fifth bit of element 32 j + i.
void KGroups(const uint8_t* b, const uint8_t* high, const uint8_t* low, float* out) {
  const float d = LoadHalf(b), dmin = LoadHalf(b + 2);
  for (int j = 0; j < 8; ++j) {
    const GgmlScaleMin group = UnpackGgmlScaleMin(b + 4, j);
    const float scale = d * static_cast<float>(group.scale);
    const float min = dmin * static_cast<float>(group.min);
    const uint8_t* q = low + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int code = j % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      if (high != nullptr) code |= (high[i] >> j & 1) << 4;
      out[32 * j + i] = scale * static_cast<float>(code) - min;
    }
  }
}

void Q6_K(const uint8_t* b, float* out) {
  const uint8_t *low = b, *high = b + 128, *scales = b + 192;
  const float d = LoadHalf(b + 208);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int half = i / 128, group = i % 128 / 32, column = i % 32;
    const uint8_t l = low[half * 64 + group % 2 * 32 + column];
    const uint8_t h = high[half * 32 + column];
    const int code = (group < 2 ? l & 15 : l >> 4) | (h >> 2 * group & 3) << 4;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    out[i] = scale * static_cast<float>(code - 32);
  }
}

void IQ4_XS(const uint8_t* b, float* out) {
  const float d = LoadHalf(b);
  const auto high = Load<uint16_t>(b + 2);
  for (int j = 0; j < 8; ++j) {
    const int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
    const float dl = d * static_cast<float>(scale - 32);
    const uint8_t* q = b + 8 + 16 * j;
    for (int i = 0; i < 16; ++i) {
      out[32 * j + i] = dl * static_cast<float>(kNonLinear4[q[i] & 15]);
      out[32 * j + i + 16] = dl * static_cast<float>(kNonLinear4[q[i] >> 4]);
    }
  }
}

void Block(uint32_t type, const uint8_t* b, float* out) {
  switch (type) {
    case kGgmlQ8_0:
      return Q8_0(b, out);
    case kGgmlQ4_0:
      return Q4_0(b, out);
    case kGgmlMXFP4:
      return Mxfp4(b, out);
    case kGgmlQ4_K:
      return KGroups(b, nullptr, b + 16, out);
    case kGgmlQ5_K:
      return KGroups(b, b + 16, b + 48, out);
    case kGgmlQ6_K:
      return Q6_K(b, out);
    case kGgmlIQ4_XS:
      return IQ4_XS(b, out);
    default:
      CheckFailed(__FILE__, __LINE__, "a ggml type without reader");
  }
}

}  // namespace

bool ReadsGgml(const GgmlType& type) { return std::ranges::count(kReadable, type.id) != 0; }

std::string ReadableGgmlTypes() {
  std::string names;
  for (const GgmlTypeId id : kReadable) {
    if (!names.empty()) names += ", ";
    names += FindGgmlType(id)->name;
  }
  return names;
}

void DequantizeGgml(const GgmlType& type, const uint8_t* data, int64_t count, float* out) {
  if (type.id == kGgmlF32) return Plain<float>(data, count, out);
  if (type.id == kGgmlF16) return Plain<F16>(data, count, out);
  if (type.id == kGgmlBF16) return Plain<BF16>(data, count, out);
  CHECK_EQ(count % type.block_size, 0);
  for (int64_t i = 0; i < count / type.block_size; ++i)
    Block(type.id, data + i * type.block_bytes, out + i * type.block_size);
}

GgmlScaleMin UnpackGgmlScaleMin(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4)};
}

void ReorderGgmlNibbles(const uint8_t* in, uint8_t* out) {
  for (int j = 0; j < 8; ++j) {  // elements 2j, 2j + 1 and 16 + 2j, 17 + 2j
    const uint8_t a = in[2 * j], b = in[2 * j + 1];
    out[j] = static_cast<uint8_t>((a & 15) | (b & 15) << 4);
    out[8 + j] = static_cast<uint8_t>(a >> 4 | (b & 0xf0));
  }
}

}  // namespace switchyard
