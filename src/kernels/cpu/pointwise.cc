// Pointwise and row-wise ops, partitioned over rows.
#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/cpu/driver.h"
#include "kernels/ops.h"
#include "kernels/reference.h"

namespace switchyard::kernels {

void RmsNorm(const RmsNormParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) {
    reference::RmsNorm(p);
    for (int64_t t = 0; p.hook && t < p.m; ++t) p.hook->OnRowWritten(t, p.y + t * p.ldy);
    return;
  }
  cpu::RunRows(pool, p.m, p.n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels->rms_norm(p.x + t * p.ldx, p.weight, p.y + t * p.ldy, p.n, p.eps);
      if (p.hook) p.hook->OnRowWritten(t, p.y + t * p.ldy);
    }
  });
}

void LayerNorm(const LayerNormParams& p, ThreadPool& pool) {
  cpu::RunRows(pool, p.m, p.n, [&](int64_t begin, int64_t end) {
    LayerNormParams part = p;
    part.x += begin * p.ldx;
    part.y += begin * p.ldy;
    part.m = end - begin;
    reference::LayerNorm(part);
    for (int64_t t = begin; p.hook && t < end; ++t) p.hook->OnRowWritten(t, p.y + t * p.ldy);
  });
}

void AddInPlace(float* y, const float* x, int64_t count, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::AddInPlace(y, x, count);
  cpu::RunRows(pool, count, 1, [&](int64_t begin, int64_t end) {
    kernels->add(y + begin, x + begin, end - begin);
  });
}

void RoundTo(DType dtype, float* x, int64_t count, ThreadPool& pool) {
  if (dtype == DType::kF32) return;
  CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::RoundTo(dtype, x, count);
  cpu::RunRows(pool, count, 1,
               [&](int64_t begin, int64_t end) { kernels->round(dtype, x + begin, end - begin); });
}

void Rope(const RopeParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  cpu::RunRows(pool, p.m, p.heads * p.rotary_dim, [&](int64_t begin, int64_t end) {
    if (kernels == nullptr || p.interleaved) {
      RopeParams part = p;
      part.x += begin * p.ldx;
      part.positions += begin;
      part.m = end - begin;
      return reference::Rope(part);
    }
    const int64_t half = p.rotary_dim / 2;
    for (int64_t t = begin; t < end; ++t) {
      const float* cosine = p.cos_sin + p.positions[t] * p.rotary_dim;
      for (int64_t h = 0; h < p.heads; ++h) {
        float* x = p.x + t * p.ldx + h * p.head_dim + p.rotary_offset;
        kernels->rotate(x, x + half, cosine, cosine + half, half);
      }
    }
  });
}

void StoreKv(const StoreKvParams& p, ThreadPool& pool) {
  const cpu::KernelTable* kernels = cpu::ActiveKernels();
  if (kernels == nullptr) return reference::StoreKv(p);
  CHECK(IsCacheType(p.dtype));
  const bool converts = SizeOf(p.dtype) >= 2;  // 8-bit codes are the same on every CPU
  const int64_t row_bytes = CacheRowBytes(p.dtype, p.n);
  cpu::RunRows(pool, p.m, p.n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (!converts) {
        WriteCacheRow(p, t);
        continue;
      }
      char* row = static_cast<char*>(p.cache) + p.slots[t] * row_bytes;
      kernels->narrow(p.dtype, p.x + t * p.ldx, row, p.n);
    }
  });
}

void Embed(const EmbedParams& p, ThreadPool& pool) {
  cpu::RunRows(pool, p.m, p.w.k, [&](int64_t begin, int64_t end) {
    reference::Embed({.ids = p.ids + begin,
                      .m = end - begin,
                      .w = p.w,
                      .first = p.first,
                      .scale = p.scale,
                      .out = p.out + begin * p.w.k});
  });
}

}  // namespace switchyard::kernels
