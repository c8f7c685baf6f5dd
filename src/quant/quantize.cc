#include "quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace switchyard {
namespace {

// A packed matrix; views of it share ownership.
struct Packed {
  std::vector<float> f32;       // kF32
  std::vector<BF16> bf16;       // kBF16
  std::vector<F16> f16;         // kF16
  std::vector<uint8_t> codes;   // kFp8Block, kMxfp4
  std::vector<float> scales;    // kFp8Block
  std::vector<uint8_t> powers;  // kMxfp4
};

void PackFp8(const float* w, int64_t n, int64_t k, Packed& out) {
  const int64_t blocks = CeilDiv(k, kFp8BlockSize);
  out.codes.resize(n * k);
  out.scales.resize(CeilDiv(n, kFp8BlockSize) * blocks);
  std::vector<float> largest(out.scales.size());
  const auto block = [&](int64_t i, int64_t j) {
    return i / kFp8BlockSize * blocks + j / kFp8BlockSize;
  };
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      float& most = largest[block(i, j)];
      most = std::max(most, std::fabs(w[i * k + j]));
    }
  }
  for (size_t b = 0; b < largest.size(); ++b) {
    out.scales[b] = largest[b] > 0 ? largest[b] / 448.0f : 1.0f;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      out.codes[i * k + j] = ToF8E4M3(w[i * k + j] / out.scales[block(i, j)]).bits;
    }
  }
}

// The nearest of the eight magnitudes; between two, the one with the even code.
uint8_t ToE2M1(float x) {
  const float magnitude = std::fabs(x);
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const float distance = std::fabs(magnitude - kE2M1[code]);
    const float best_distance = std::fabs(magnitude - kE2M1[best]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::signbit(x) ? best | 8 : best;
}

void PackMxfp4(const float* w, int64_t n, int64_t k, Packed& out) {
  CHECK_EQ(k % kMxfp4BlockSize, 0);
  out.codes.resize(n * k / 2);
  out.powers.resize(n * k / kMxfp4BlockSize);
  for (size_t b = 0; b < out.powers.size(); ++b) {
    const float* block = w + b * kMxfp4BlockSize;
    float largest = 0;
    for (int64_t j = 0; j < kMxfp4BlockSize; ++j) largest = std::max(largest, std::fabs(block[j]));
    const int power = largest > 0 ? std::clamp(std::ilogb(largest) - 2, -127, 127) : 0;
    out.powers[b] = static_cast<uint8_t>(power + 127);
    const float scale = FromE8M0(out.powers[b]);
    for (int64_t j = 0; j < kMxfp4BlockSize; ++j) {
      const int code = ToE2M1(block[j] / scale);
      out.codes[(b * kMxfp4BlockSize + j) / 2] |= static_cast<uint8_t>(code << (j % 2 * 4));
    }
  }
}

}  // namespace

WeightView Quantize(WeightFormat format, std::span<const float> w, int64_t n, int64_t k) {
  CHECK_EQ(static_cast<int64_t>(w.size()), n * k);
  const auto packed = std::make_shared<Packed>();
  WeightView view = {.format = format, .stored_k = k, .n = n, .k = k, .owner = packed};
  switch (format) {
    case WeightFormat::kF32:
      packed->f32.assign(w.begin(), w.end());
      view.data = packed->f32.data();
      break;
    case WeightFormat::kBF16:
      for (float x : w) packed->bf16.push_back(ToBF16(x));
      view.data = packed->bf16.data();
      break;
    case WeightFormat::kF16:
      for (float x : w) packed->f16.push_back(ToF16(x));
      view.data = packed->f16.data();
      break;
    case WeightFormat::kFp8Block:
      PackFp8(w.data(), n, k, *packed);
      view.data = packed->codes.data();
      view.scales = packed->scales.data();
      break;
    case WeightFormat::kMxfp4:
      PackMxfp4(w.data(), n, k, *packed);
      view.data = packed->codes.data();
      view.scales = packed->powers.data();
      break;
  }
  return view;
}

}  // namespace switchyard
