#include "moe/cuda/runners/expert_upload.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "kernels/cuda/quantized/w4a16_gemm.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kStagingBytes = int64_t{16} << 20;  // bytes of converted rows

int64_t BytesOf(ElementType type) {
  return type == ElementType::kFp8 ? 1 : type == ElementType::kBF16 ? 2 : 4;
}

bool Stores(const WeightView& w, ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return w.format == WeightFormat::kF32;
    case ElementType::kBF16:
      return w.format == WeightFormat::kBF16;
    case ElementType::kFp8:
      return w.format == WeightFormat::kFp8Block;
  }
  return false;
}

// Row i of the view in its stored format.
const std::byte* StoredRow(const WeightView& w, ElementType type, int64_t i) {
  const int64_t row = w.row0 + i * w.row_step;
  return static_cast<const std::byte*>(w.data) + (row * w.stored_k + w.col0) * BytesOf(type);
}

void ConvertRow(const WeightView& w, int64_t i, ElementType type, std::byte* to) {
  if (Stores(w, type)) {
    std::memcpy(to, StoredRow(w, type, i), w.k * BytesOf(type));
    return;
  }
  if (type == ElementType::kF32) return DequantizeRow(w, i, 0, w.k, reinterpret_cast<float*>(to));
  CHECK(type == ElementType::kBF16);
  static thread_local std::vector<float> values;
  values.resize(w.k);
  DequantizeRow(w, i, 0, w.k, values.data());
  auto* rounded = reinterpret_cast<BF16*>(to);
  for (int64_t j = 0; j < w.k; ++j) rounded[j] = ToBF16(values[j]);
}

// Bytes of the block scales of an [n, k] matrix.
int64_t ScaleBytes(int64_t n, int64_t k) {
  return CeilDiv(n, kFp8BlockSize) * CeilDiv(k, kFp8BlockSize) *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

MatrixBytes BytesOfMatrix(int64_t parts, int64_t n, int64_t k, ElementType type,
                          std::optional<W4A16Format> packed) {
  if (packed)
    return {.data = W4A16Bytes(*packed, parts * n, k),
            .scales = packed->kind == W4A16Kind::kNvfp4
                          ? W4A16RowTiles(parts * n) * static_cast<int64_t>(sizeof(float))
                          : 0};
  return {.data = parts * n * k * BytesOf(type),
          .scales = type == ElementType::kFp8 ? parts * ScaleBytes(n, k) : 0};
}

std::byte* ExpertUploader::Staging(int64_t bytes) {
  if (std::ssize(staging_) < bytes) staging_.resize(bytes);
  return staging_.data();
}

void ExpertUploader::Upload(const kernels::ExpertWeights& expert,
                            const ExpertArithmetic& arithmetic, const ExpertSlot& slot) {
  const std::array gate_and_up = {&expert.gate, &expert.up};
  const auto upper = std::span(gate_and_up).last(arithmetic.upper_parts());
  const std::array lower = {&expert.down};
  std::optional<W4A16Format> packed_upper, packed_lower;
  if (arithmetic.packed) {
    packed_upper = arithmetic.packed->gate_up;
    packed_lower = arithmetic.packed->down;
  }
  UploadMatrix(upper, arithmetic.weights, packed_upper, slot[kGateUp], slot[kGateUpScales]);
  UploadMatrix(lower, arithmetic.weights, packed_lower, slot[kDown], slot[kDownScales]);
  const std::array biases = {expert.gate_bias, expert.up_bias};
  const std::array lower_bias = {expert.down_bias};
  UploadBias(std::span(biases).last(arithmetic.upper_parts()), expert.gate.n, slot[kGateUpBias]);
  UploadBias(lower_bias, expert.down.n, slot[kDownBias]);
}

void ExpertUploader::UploadMatrix(Parts parts, ElementType type, std::optional<W4A16Format> packed,
                                  std::byte* data, std::byte* scales) {
  const int64_t n = parts[0]->n, k = parts[0]->k;
  if (packed) {
    const MatrixBytes bytes = BytesOfMatrix(std::ssize(parts), n, k, type, packed);
    floats_.resize(bytes.scales / sizeof(float));
    PackW4A16(*packed, parts, Staging(bytes.data), floats_.empty() ? nullptr : floats_.data(),
              pool_);
    copy_(data, staging_.data(), bytes.data);
    if (bytes.scales > 0) copy_(scales, floats_.data(), bytes.scales);
    return;
  }
  const MatrixBytes of_part = BytesOfMatrix(1, n, k, type, {});
  for (size_t i = 0; i < parts.size(); ++i) {
    const WeightView& w = *parts[i];
    CHECK(w.n == n && w.k == k);
    UploadRows(w, type, data + i * of_part.data);
    if (type == ElementType::kFp8) UploadBlockScales(w, scales + i * of_part.scales);
  }
}

void ExpertUploader::UploadRows(const WeightView& w, ElementType type, std::byte* to) {
  const int64_t row_bytes = w.k * BytesOf(type);
  if (Stores(w, type) && w.row_step == 1 && w.stored_k == w.k)
    return copy_(to, StoredRow(w, type, 0), w.n * row_bytes);
  const int64_t rows_at_a_time = std::clamp<int64_t>(kStagingBytes / row_bytes, 1, w.n);
  std::byte* staging = Staging(rows_at_a_time * row_bytes);
  for (int64_t first = 0; first < w.n; first += rows_at_a_time) {
    const int64_t rows = std::min(rows_at_a_time, w.n - first);
    pool_.RunRanges(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ConvertRow(w, first + i, type, staging + i * row_bytes);
    });
    copy_(to + first * row_bytes, staging, rows * row_bytes);
  }
}

// Uploads the block scales [ceil(n / 128), ceil(k / 128)] of a view that begins and ends on block
// boundaries.
void ExpertUploader::UploadBlockScales(const WeightView& w, std::byte* to) {
  const int64_t stored_columns = CeilDiv(w.stored_k, kFp8BlockSize);
  const int64_t rows = CeilDiv(w.n, kFp8BlockSize), columns = CeilDiv(w.k, kFp8BlockSize);
  const float* from = static_cast<const float*>(w.scales) +
                      w.row0 / kFp8BlockSize * stored_columns + w.col0 / kFp8BlockSize;
  floats_.clear();
  for (int64_t r = 0; r < rows; ++r)
    floats_.insert(floats_.end(), from + r * stored_columns, from + r * stored_columns + columns);
  copy_(to, floats_.data(), std::ssize(floats_) * static_cast<int64_t>(sizeof(float)));
}

void ExpertUploader::UploadBias(std::span<const float* const> parts, int64_t n, std::byte* to) {
  if (to == nullptr) return;
  floats_.clear();
  for (const float* part : parts) {
    if (part) {
      floats_.insert(floats_.end(), part, part + n);
    } else {
      floats_.resize(floats_.size() + n);  // zeros
    }
  }
  copy_(to, floats_.data(), std::ssize(floats_) * static_cast<int64_t>(sizeof(float)));
}

}  // namespace switchyard::cuda
