#include "kernels/cuda/device/cuda_device_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "kernels/gpus.h"

namespace switchyard::cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{8} << 20;

int64_t BytesOf(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kFp8Block ? 1 : 2;
}

// Writes rows [begin, end) of the uploaded form to `out`.
void FillRows(const WeightView& w, WeightFormat form, int64_t begin, int64_t end, std::byte* out,
              ThreadPool& pool) {
  const int64_t row_bytes = w.k * BytesOf(form);
  pool.RunRanges(end - begin, std::max<int64_t>(1, 65536 / row_bytes),
                 [&](int64_t first, int64_t last) {
                   std::vector<float> row(form == WeightFormat::kBF16 ? w.k : 0);
                   for (int64_t i = first; i < last; ++i) {
                     std::byte* to = out + i * row_bytes;
                     const int64_t stored = w.row0 + (begin + i) * w.row_step;
                     if (form == w.format) {
                       const auto* from = static_cast<const std::byte*>(w.data) +
                                          (stored * w.stored_k + w.col0) * BytesOf(form);
                       std::memcpy(to, from, row_bytes);
                     } else if (form == WeightFormat::kF32) {
                       DequantizeRow(w, begin + i, 0, w.k, reinterpret_cast<float*>(to));
                     } else {
                       DequantizeRow(w, begin + i, 0, w.k, row.data());
                       auto* halves = reinterpret_cast<BF16*>(to);
                       for (int64_t j = 0; j < w.k; ++j) halves[j] = ToBF16(row[j]);
                     }
                   }
                 });
}

int64_t NumBlocks(const WeightView& w) {
  return CeilDiv(w.n, kFp8BlockSize) * CeilDiv(w.k, kFp8BlockSize);
}

// Scales of the blocks covered by the view, [ceil(n / 128), ceil(k / 128)].
std::vector<float> BlockScales(const WeightView& w) {
  const int64_t rows = CeilDiv(w.n, kFp8BlockSize), columns = CeilDiv(w.k, kFp8BlockSize);
  const int64_t stride = CeilDiv(w.stored_k, kFp8BlockSize);
  std::vector<float> scales(rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    const auto* from = static_cast<const std::byte*>(w.scales) +
                       ((w.row0 / kFp8BlockSize + i) * stride + w.col0 / kFp8BlockSize) * 4;
    std::memcpy(scales.data() + i * columns, from, columns * 4);
  }
  return scales;
}

}  // namespace

WeightFormat DeviceFormat(const WeightView& w, DType dtype, bool plain) {
  const bool whole_blocks =
      !plain && w.row_step == 1 && w.row0 % kFp8BlockSize == 0 && w.col0 % kFp8BlockSize == 0;
  return kernels::GpuFormat(w.format, dtype, whole_blocks);
}

WeightView UploadWeight(const WeightView& w, WeightFormat form, const UploadTarget& target,
                        ThreadPool& pool) {
  WeightView placed;
  placed.format = form;
  // On a GPU the device's dtype decides whether input rows are bfloat16.
  placed.activation =
      w.activation == ActivationFormat::kBFloat16 ? ActivationFormat::kNone : w.activation;
  placed.input_scale = w.input_scale;
  placed.stored_k = placed.k = w.k;
  placed.n = w.n;

  const int64_t row_bytes = w.k * BytesOf(form);
  // Memory covers whole blocks; scales start at a multiple of 256 bytes.
  int64_t bytes = RoundUp(w.n, kFp8BlockSize) * row_bytes, scales_at = 0;
  if (form == WeightFormat::kFp8Block) {
    scales_at = RoundUp(bytes, 256);
    bytes = scales_at + NumBlocks(w) * static_cast<int64_t>(sizeof(float));
  } else {
    bytes = w.n * row_bytes;
  }
  std::shared_ptr<void> memory = target.allocate(std::max<int64_t>(bytes, 1));
  auto* to = static_cast<std::byte*>(memory.get());
  placed.data = to;
  placed.owner = memory;
  if (form == WeightFormat::kFp8Block && NumBlocks(w) > 0) placed.scales = to + scales_at;
  if (w.n == 0 || w.k == 0 || !target.copy_in) return placed;
  if (placed.scales) {
    const std::vector<float> scales = BlockScales(w);
    target.copy_in(to + scales_at, scales.data(), scales.size() * sizeof(float));
  }

  if (form == w.format && w.row_step == 1 && w.col0 == 0 && w.k == w.stored_k) {
    target.copy_in(to, static_cast<const std::byte*>(w.data) + w.row0 * row_bytes, w.n * row_bytes);
    return placed;
  }
  const int64_t at_once = std::clamp<int64_t>(kChunkBytes / row_bytes, 1, w.n);
  std::vector<std::byte> chunk(at_once * row_bytes);
  for (int64_t begin = 0; begin < w.n; begin += at_once) {
    const int64_t end = std::min(w.n, begin + at_once);
    FillRows(w, form, begin, end, chunk.data(), pool);
    target.copy_in(to + begin * row_bytes, chunk.data(), (end - begin) * row_bytes);
  }
  return placed;
}

WeightView ConcatWeightRows(std::span<const WeightView> parts,
                            const std::function<std::shared_ptr<void>(size_t bytes)>& allocate,
                            cudaStream_t stream, bool copies) {
  WeightView stacked = parts[0];
  const bool blocks = stacked.format == WeightFormat::kFp8Block;
  if (!blocks && stacked.format != WeightFormat::kBF16) return {};
  stacked.n = 0;
  for (const WeightView& w : parts) {
    // Parts must be contiguous: views of some rows, but not of some columns. A block of scales must
    // not span two parts.
    const bool fits = w.format == stacked.format && w.k == stacked.k && w.stored_k == w.k &&
                      w.row_step == 1 && w.activation == stacked.activation &&
                      w.input_scale == stacked.input_scale &&
                      (!blocks || (w.row0 % kFp8BlockSize == 0 && w.n % kFp8BlockSize == 0));
    if (!fits) return {};
    stacked.n += w.n;
  }
  const int64_t row_bytes = stacked.k * BytesOf(stacked.format);
  const int64_t scale_row_bytes =
      blocks ? CeilDiv(stacked.k, kFp8BlockSize) * static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t scales_at = RoundUp(stacked.n * row_bytes, 256);
  const std::shared_ptr<void> memory =
      allocate(scales_at + stacked.n / kFp8BlockSize * scale_row_bytes);
  auto* rows_to = static_cast<std::byte*>(memory.get());
  std::byte* scales_to = rows_to + scales_at;
  stacked.data = rows_to;
  stacked.scales = blocks ? scales_to : nullptr;
  stacked.owner = memory;
  stacked.row0 = 0;
  if (!copies) return stacked;
  const auto append = [&](std::byte*& to, const void* data, int64_t offset, int64_t bytes) {
    Check(cudaMemcpyAsync(to, static_cast<const std::byte*>(data) + offset, bytes,
                          cudaMemcpyDeviceToDevice, stream),
          "copy of stacked weights");
    to += bytes;
  };
  for (const WeightView& w : parts) {
    append(rows_to, w.data, w.row0 * row_bytes, w.n * row_bytes);
    if (blocks)
      append(scales_to, w.scales, w.row0 / kFp8BlockSize * scale_row_bytes,
             w.n / kFp8BlockSize * scale_row_bytes);
  }
  Check(cudaStreamSynchronize(stream), "copy of stacked weights");
  return stacked;
}

Staging::Staging(cudaStream_t stream) : stream_(stream) {}

void Staging::WaitFor(const Event& event) const {
  if (wait_) wait_(event.get());
  event.Wait();
}

// In the first pass through the ring the wait returns at once, because an event that was never
// recorded counts as complete.
void Staging::NextSegment() {
  read_[segment_].Record(stream_);
  segment_ = (segment_ + 1) % kSegments;
  used_ = 0;
  WaitFor(read_[segment_]);
}

void* Staging::Reserve(size_t bytes) {
  CHECK_LE(bytes, kSegmentBytes);
  if (used_ + bytes > kSegmentBytes) NextSegment();
  void* memory = segment(segment_) + used_;
  used_ = std::min(kSegmentBytes, (used_ + bytes + 15) / 16 * 16);
  return memory;
}

void Staging::CopyIn(void* to, const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kSegmentBytes) {
    const size_t count = std::min(kSegmentBytes, bytes - at);
    void* memory = Reserve(count);
    std::memcpy(memory, static_cast<const std::byte*>(from) + at, count);
    Check(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, memory, count, cudaMemcpyHostToDevice,
                          stream_),
          "copy to the GPU");
  }
}

void Staging::CopyOut(void* to, const void* from, size_t bytes) {
  const auto enqueue = [&](size_t at) {
    NextSegment();
    const size_t count = std::min(kSegmentBytes, bytes - at);
    used_ = kSegmentBytes;  // reserves the segment until the host has read it
    Check(cudaMemcpyAsync(segment(segment_), static_cast<const std::byte*>(from) + at, count,
                          cudaMemcpyDeviceToHost, stream_),
          "copy from the GPU");
    read_[segment_].Record(stream_);
    return segment_;
  };
  if (bytes == 0) return;
  int ready = enqueue(0);
  for (size_t at = 0; at < bytes; at += kSegmentBytes) {
    const int current = ready;
    if (at + kSegmentBytes < bytes) ready = enqueue(at + kSegmentBytes);
    WaitFor(read_[current]);
    std::memcpy(static_cast<std::byte*>(to) + at, segment(current),
                std::min(kSegmentBytes, bytes - at));
  }
}

}  // namespace switchyard::cuda
