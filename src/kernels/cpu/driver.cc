#include "kernels/cpu/driver.h"

#include <cstdlib>
#include <memory>

#include "core/check.h"
#include "kernels/ops.h"

namespace switchyard::kernels::cpu {
namespace {

int64_t RoundUp(int64_t n, int64_t step) { return CeilDiv(n, step) * step; }

int64_t ScaleFloats(int64_t k) { return RoundUp(k / kMxfp4BlockSize + 2, kMaxLanes); }

void Convert(const void* view, int64_t row, int64_t begin, int64_t end, float* out) {
  DequantizeRow(*static_cast<const WeightView*>(view), row, begin, end, out);
}

struct Buffer {
  std::unique_ptr<float, decltype(&std::free)> data{nullptr, &std::free};
  int64_t size = 0;
};

}  // namespace

const Leaves* ActiveLeaves() {
  switch (ActiveIsa()) {
    case Isa::kReference:
      return nullptr;
    case Isa::kAvx2:
      return &avx2::kLeaves;
    case Isa::kAvx512:
      return &avx512::kLeaves;
  }
  return nullptr;
}

float* ThreadScratch(int64_t count) {
  static thread_local Buffer buffer;
  if (count > buffer.size) {
    const int64_t size = RoundUp(count, 1024);
    buffer.data.reset(static_cast<float*>(std::aligned_alloc(64, size * sizeof(float))));
    CHECK(buffer.data != nullptr);
    buffer.size = size;
  }
  return buffer.data.get();
}

WeightRef MakeRef(const WeightView& w) {
  return {w.format, w.data, w.scales, w.stored_k, w.row0, w.row_step,
          w.col0,   w.n,    w.k,      Convert,    &w,     0};
}

int64_t LinearScratch(int64_t k) {
  constexpr int64_t kSlack = 8;  // rows and columns of tiles are rounded up
  const int64_t stride = RoundUp(k, kMaxLanes) + kMaxLanes;
  const int64_t parked = (kPanelBatch + kSlack) * (kPanelRows + kSlack) * kMaxLanes;
  return kSlack * ScaleFloats(k) + kPanelRows * stride + parked;
}

int64_t ColumnsScratch() {
  return (kColumnDepth + kColumnBatch) * kColumnBlock + ScaleFloats(kColumnBlock);
}

int64_t AttentionScratch(int64_t k_width, int64_t v_width) {
  const int64_t k = RoundUp(k_width, kMaxLanes), v = RoundUp(v_width, kMaxLanes);
  return kQueryBlock * (v + kKeyBlock) + kKeyBlock * (k + v);
}

}  // namespace switchyard::kernels::cpu
