#include "quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"
#include "quant/activations.h"
#include "quant/fp8.h"
#include "quant/rounding.h"
#include "quant/scale_search.h"
#include "quant/vector_width.h"

namespace switchyard {
namespace {

using vector_width::RunWidest;

// A packed matrix; views of it share ownership.
struct Packed {
  std::vector<float> f32;             // kF32
  std::vector<BF16> bf16;             // kBF16
  std::vector<F16> f16;               // kF16
  std::vector<uint8_t> codes;         // all others
  std::vector<float> scales;          // kFp8Block, kFp8Channel, kInt8Channel, kInt4Group
  std::vector<uint8_t> block_scales;  // kMxfp4, kNvfp4
  std::vector<uint8_t> zeros;         // kInt4Group
};

struct LargestMagnitude {
  [[gnu::always_inline]] static inline float Run(const float* x, int64_t n) {
    return rounding::LargestMagnitude(x, n);
  }
};

float Largest(const float* x, int64_t n) { return RunWidest<LargestMagnitude>(x, n); }

// Scale that maps `largest` to `limit`; 1 if all values are zero or negligible.
float ScaleFor(float limit, float largest) {
  const float scale = largest / limit;
  return scale > rounding::kSmallestScale ? scale : 1.0f;
}

void PackFp8Block(const float* w, int64_t n, int64_t k, Packed& out) {
  const int64_t blocks = CeilDiv(k, kFp8BlockSize);
  out.codes.resize(n * k);
  out.scales.resize(CeilDiv(n, kFp8BlockSize) * blocks);
  for (int64_t first = 0; first < n; first += kFp8BlockSize) {
    const int64_t last = std::min(n, first + kFp8BlockSize);
    for (int64_t j = 0; j < k; j += kFp8BlockSize) {
      const int64_t width = std::min(kFp8BlockSize, k - j);
      float largest = 0;
      for (int64_t i = first; i < last; ++i) {
        largest = std::max(largest, Largest(w + i * k + j, width));
      }
      const float scale = ScaleFor(448.0f, largest);
      out.scales[first / kFp8BlockSize * blocks + j / kFp8BlockSize] = scale;
      for (int64_t i = first; i < last; ++i) {
        EncodeFp8(w + i * k + j, width, scale, out.codes.data() + i * k + j);
      }
    }
  }
}

void PackFp8Channel(const float* w, int64_t n, int64_t k, Packed& out) {
  out.codes.resize(n * k);
  for (int64_t i = 0; i < n; ++i) {
    const float scale = ScaleFor(448.0f, Largest(w + i * k, k));
    out.scales.push_back(scale);
    EncodeFp8(w + i * k, k, scale, out.codes.data() + i * k);
  }
}

void PackInt8Channel(const float* w, int64_t n, int64_t k, Packed& out) {
  out.codes.resize(n * k);
  auto* codes = reinterpret_cast<int8_t*>(out.codes.data());
  for (int64_t i = 0; i < n; ++i) {
    out.scales.push_back(QuantizeInt8Row(w + i * k, k, codes + i * k).scale);
  }
}

// Quantizes a row x [k] by the scales of its groups to 4-bit codes, k even: two per byte, low
// nibble first. Blocks of 16 columns have fixed length, so that compilers vectorise groups of 32.
struct PackSteps {
  static constexpr int64_t kBlock = 16;

  [[gnu::always_inline]] static inline uint32_t Code(float steps, int zero) {
    const int code = rounding::RoundToInt(steps) + zero;
    return static_cast<uint32_t>(code < 0 ? 0 : code > 15 ? 15 : code);
  }
  [[gnu::always_inline]] static inline void PackBlock(const float* x, float inverse, int zero,
                                                      uint8_t* __restrict codes) {
    uint8_t wide[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      wide[i] = static_cast<uint8_t>(Code(x[i] * inverse, zero));
    }
    for (int64_t i = 0; i < kBlock / 2; ++i) {
      codes[i] = static_cast<uint8_t>(wide[2 * i] | wide[2 * i + 1] << 4);
    }
  }
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t k, int64_t group,
                                                const Int4Scale* scales,
                                                uint8_t* __restrict codes) {
    for (int64_t j = 0; j < k; ++scales) {
      const float inverse = 1.0f / scales->scale;
      const int zero = scales->zero;
      const int64_t end = group < k - j ? j + group : k;
      for (; j + kBlock <= end; j += kBlock) PackBlock(x + j, inverse, zero, codes + j / 2);
      for (; j < end; j += 2) {
        codes[j / 2] =
            static_cast<uint8_t>(Code(x[j] * inverse, zero) | Code(x[j + 1] * inverse, zero) << 4);
      }
    }
  }
};

// Packs x [n] as e2m1 codes, n even: two per byte, low nibble first. x is already divided by its
// scales.
struct PackE2M1 {
  [[gnu::always_inline]] static inline void Run(const float* x, int64_t n,
                                                uint8_t* __restrict codes) {
    for (int64_t i = 0; i < n / 2; ++i) {
      codes[i] =
          static_cast<uint8_t>(rounding::ToE2M1(x[2 * i]) | rounding::ToE2M1(x[2 * i + 1]) << 4);
    }
  }
};

// Scale and zero point by the extreme values of a group.
Int4Scale ScaleOfExtremes(const float* group, int64_t count, bool symmetric) {
  if (symmetric) return {.scale = ScaleFor(7.5f, Largest(group, count))};
  const float low = std::min(0.0f, *std::min_element(group, group + count));
  const float high = std::max(0.0f, *std::max_element(group, group + count));
  const float scale = ScaleFor(15.0f, high - low);
  return {scale, static_cast<uint8_t>(std::lrint(-low / scale))};
}

void PackInt4(const float* w, int64_t n, int64_t k, const Int4Packing& packing, Packed& out) {
  CHECK_EQ(k % 2, 0);
  CHECK_GT(packing.group_size, 0);
  CHECK_EQ(packing.group_size % 2, 0);
  const int64_t group = packing.group_size;
  out.codes.resize(n * k / 2);
  std::vector<Int4Scale> scales(CeilDiv(k, group));
  for (int64_t i = 0; i < n; ++i) {
    const float* row = w + i * k;
    if (packing.search) {
      FindInt4Scales(row, k, group, packing.symmetric, scales.data());
    } else {
      for (int64_t j = 0; j < k; j += group) {
        scales[j / group] = ScaleOfExtremes(row + j, std::min(group, k - j), packing.symmetric);
      }
    }
    RunWidest<PackSteps>(row, k, group, scales.data(), &out.codes[i * k / 2]);
    for (const Int4Scale& s : scales) {
      out.scales.push_back(s.scale);
      if (!packing.symmetric) out.zeros.push_back(s.zero);
    }
  }
}

// Packs rows of e2m1 blocks. `put_scale(x)` appends the scale of a block and returns the scale's
// value. If the value is 0, the block underflows and its codes are zeros.
template <typename PutScale>
void PackE2M1Blocks(const float* w, int64_t n, int64_t k, int64_t block, Packed& out,
                    const PutScale& put_scale) {
  CHECK_EQ(k % block, 0);
  out.codes.resize(n * k / 2);
  std::vector<float> steps(k);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; j += block) {
      const float* x = w + i * k + j;
      const float scale = put_scale(x);
      const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
      for (int64_t c = 0; c < block; ++c) steps[j + c] = x[c] * inverse;
    }
    RunWidest<PackE2M1>(steps.data(), k, &out.codes[i * k / 2]);
  }
}

uint8_t Mxfp4Scale(const float* block) {
  const float largest = Largest(block, kMxfp4BlockSize);
  const int power = largest > 0 ? std::clamp(std::ilogb(largest) - 2, -127, 127) : 0;
  return static_cast<uint8_t>(power + 127);
}

void PackMxfp4(const float* w, int64_t n, int64_t k, bool search, Packed& out) {
  PackE2M1Blocks(w, n, k, kMxfp4BlockSize, out, [&](const float* block) {
    out.block_scales.push_back(search ? FindMxfp4Scale(block) : Mxfp4Scale(block));
    return FromE8M0(out.block_scales.back());
  });
}

// Packs w [n, k] as NVFP4 and returns the per-tensor scale.
float PackNvfp4(const float* w, int64_t n, int64_t k, Packed& out) {
  const float global = Nvfp4GlobalScale(Largest(w, n * k));
  PackE2M1Blocks(w, n, k, kNvfp4BlockSize, out, [&](const float* block) {
    const float largest = Largest(block, kNvfp4BlockSize);
    out.block_scales.push_back(rounding::ToE4M3(largest / 6.0f / global));
    return rounding::FromE4M3(out.block_scales.back()) * global;
  });
  return global;
}

// Packs into `view.format` and sets the view's fields of that format except `data`.
void PackCodes(const float* w, const Int4Packing& int4, Packed& out, WeightView& view) {
  switch (view.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      break;
    case WeightFormat::kFp8Block:
      PackFp8Block(w, view.n, view.k, out);
      break;
    case WeightFormat::kFp8Channel:
      PackFp8Channel(w, view.n, view.k, out);
      break;
    case WeightFormat::kInt8Channel:
      PackInt8Channel(w, view.n, view.k, out);
      break;
    case WeightFormat::kInt4Group:
      PackInt4(w, view.n, view.k, int4, out);
      view.group_size = int4.group_size;
      if (!int4.symmetric) view.zeros = out.zeros.data();
      break;
    case WeightFormat::kMxfp4:
      PackMxfp4(w, view.n, view.k, int4.search, out);
      view.scales = out.block_scales.data();
      return;
    case WeightFormat::kNvfp4:
      view.global_scale = PackNvfp4(w, view.n, view.k, out);
      view.scales = out.block_scales.data();
      return;
    default:
      CheckFailed(__FILE__, __LINE__, "panels are made from other formats");
  }
  view.scales = out.scales.data();
}

}  // namespace

float Nvfp4GlobalScale(float largest) { return 1.0f / (1.0f / ScaleFor(6.0f * 448.0f, largest)); }

WeightView Quantize(WeightFormat format, std::span<const float> w, int64_t n, int64_t k,
                    const Int4Packing& int4) {
  CHECK_EQ(static_cast<int64_t>(w.size()), n * k);
  const auto packed = std::make_shared<Packed>();
  WeightView view = {.format = format, .stored_k = k, .n = n, .k = k, .owner = packed};
  switch (format) {
    case WeightFormat::kF32:
      packed->f32.assign(w.begin(), w.end());
      view.data = packed->f32.data();
      return view;
    case WeightFormat::kBF16:
      for (float x : w) packed->bf16.push_back(ToBF16(x));
      view.data = packed->bf16.data();
      return view;
    case WeightFormat::kF16:
      for (float x : w) packed->f16.push_back(ToF16(x));
      view.data = packed->f16.data();
      return view;
    default:
      PackCodes(w.data(), int4, *packed, view);
      view.data = packed->codes.data();
      return view;
  }
}

}  // namespace switchyard
