#include "kernels/cpu/driver.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/check.h"
#include "kernels/cpu/heuristics.h"
#include "kernels/ops.h"
#include "quant/panels.h"

namespace switchyard::kernels::cpu {
namespace {

int64_t ScaleFloats(int64_t k) { return RoundUp(2 * (k / kInt4Block + 2) + kMaxLanes, kMaxLanes); }

// Bits per weight without scales. Scales add less than half a byte per weight, so rounding down to
// half bytes removes them.
int64_t StoredBits(WeightFormat format) {
  return 4 * static_cast<int64_t>(2 * BytesPerWeight(format));
}

void Convert(const void* view, int64_t row, int64_t begin, int64_t end, float* out) {
  DequantizeRow(*static_cast<const WeightView*>(view), row, begin, end, out);
}

// Per-thread buffer that grows to the largest request and is never shrunk.
class Buffer {
 public:
  void* Get(int64_t bytes) {
    if (bytes > size_) {
      const int64_t size = RoundUp(bytes, 4096);
      data_.reset(std::aligned_alloc(64, size));
      CHECK(data_ != nullptr);
      size_ = size;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<void, decltype(&std::free)> data_{nullptr, &std::free};
  int64_t size_ = 0;
};

KernelTable Avx512Kernels() {
  KernelTable kernels = avx512::kKernels;
  if (HasAvx512Vnni()) {
    kernels.linear_int8 = avx512::LinearInt8;
    kernels.linear_four_bit = avx512::LinearFourBit;
  }
  if (HasAvx512BF16()) {
    kernels.linear_bf16 = avx512::LinearBF16;
    kernels.attention_bf16 = avx512::AttentionBF16;
    if (HasAvx512Vbmi()) kernels.linear_fp8 = avx512::LinearFp8BF16;
  }
  return kernels;
}

KernelTable AmxKernels() {
  KernelTable kernels = Avx512Kernels();
  kernels.linear_int8 = amx::LinearInt8;
  kernels.linear_bf16 = amx::LinearBF16;
  return kernels;
}

// Bytes for a block of gathered rows of x and a weight panel (amx/tile_panels.h). A panel of few
// rows of x (amx/tile_rows.h) needs no more than this.
int64_t TileScratchBytes(int64_t row_bytes) {
  constexpr int64_t kBlockRows = 32, kLine = 64;
  const int64_t columns =
      row_bytes * kMaxPanelCols > kMaxPanelBytes ? kMaxPanelCols / 2 : kMaxPanelCols;
  const int64_t lines = RoundUp(row_bytes, kLine);
  static_assert(kTilesMaxPackedRows <= kMaxPanelCols / 2 + kBlockRows);
  // Rows of x have a stride of an odd number of cache lines (RoundedRows).
  return columns * lines + kBlockRows * (lines + kLine);
}

}  // namespace

const KernelTable* ActiveKernels() {
  switch (ActiveIsa()) {
    case Isa::kReference:
      return nullptr;
    case Isa::kAvx2:
      return &avx2::kKernels;
    case Isa::kAvx512: {
      static const KernelTable kernels = Avx512Kernels();
      return &kernels;
    }
    case Isa::kAmx:
    case Isa::kAmxEmulated: {
      static const KernelTable kernels = AmxKernels();
      return &kernels;
    }
  }
  return nullptr;
}

float* ThreadScratch(int64_t count) {
  static thread_local Buffer buffer;
  return static_cast<float*>(buffer.Get(count * static_cast<int64_t>(sizeof(float))));
}

char* OpScratch(int64_t bytes) {
  static thread_local Buffer buffer;
  return static_cast<char*>(buffer.Get(bytes));
}

WeightRef MakeRef(const WeightView& w) {
  const bool panels = HasPanels(w.format);
  const PanelLayout layout = panels ? PanelLayoutOf(w.format, w.group_size) : PanelLayout();
  return {.format = w.format,
          .data = w.data,
          .scales = w.scales,
          .zeros = w.zeros,
          .group_size = w.group_size,
          .global_scale = w.global_scale,
          .stored_k = w.stored_k,
          .row0 = w.row0,
          .row_step = w.row_step,
          .col0 = w.col0,
          .n = w.n,
          .k = w.k,
          .convert = Convert,
          .view = &w,
          .skip = 0,
          .part_scales = layout.scale_bytes,
          .panel_scales = panels ? PanelScaleBytes(w.format, w.group_size, w.stored_k) : 0};
}

const void* RowAddress(const WeightView& w, int64_t row) {
  if (HasPanels(w.format))
    return static_cast<const char*>(w.data) +
           (w.row0 + row) / kPanelHeight * PanelBytes(w.format, w.group_size, w.stored_k);
  const int64_t first = (w.row0 + row * w.row_step) * w.stored_k + w.col0;
  return static_cast<const char*>(w.data) + first * StoredBits(w.format) / 8;
}

int64_t LinearScratch(int64_t k) {
  constexpr int64_t kSlack = 8;  // tile rows and columns are rounded up
  const int64_t saved = (kPanelBatch + kSlack) * (kPanelRows + kSlack) * kMaxLanes;
  const int64_t floats = kSlack * ScaleFloats(k) + kPanelRows * ScratchStride(k) + saved;
  constexpr int64_t kWidest = 2;  // bytes per weight in AMX tiles
  return std::max(floats, TileScratchBytes(kWidest * k) / static_cast<int64_t>(sizeof(float)));
}

int64_t ColumnsScratch() {
  return (kColumnDepth + kColumnBatch) * kColumnBlock + ScaleFloats(kColumnBlock);
}

int64_t AttentionScratch(int64_t k_width, int64_t v_width) {
  const int64_t k = RoundUp(k_width, kMaxLanes), v = RoundUp(v_width, kMaxLanes);
  return 2 * PartialFloats(kQueryBlock, v_width) + kQueryBlock * kKeyBlock + kKeyBlock * (k + v);
}

int64_t PartialFloats(int64_t queries, int64_t v_width) {
  return RoundUp(queries * (RoundUp(v_width, kMaxLanes) + 2), kMaxLanes);
}

}  // namespace switchyard::kernels::cpu
