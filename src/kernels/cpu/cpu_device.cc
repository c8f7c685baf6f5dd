// Device implementation on a CPU thread pool.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/compressed.h"
#include "kernels/cpu/driver.h"
#include "kernels/device.h"
#include "kernels/recurrent.h"
#include "kernels/streams.h"

namespace switchyard::kernels {
namespace {

struct CpuSequences final : PassSequences {
  void Set(std::span<const SequenceSpan> of_pass, int32_t slots_per_page) override {
    spans = of_pass;
    page_size = slots_per_page;
  }
  std::span<const SequenceSpan> spans;
  int32_t page_size = 1;
};

// Ops of this device have ended when they return, so a copy is complete when the call returns.
class CpuHostCopy final : public HostCopy {
 public:
  void Start(const void* from, size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.assign(first, first + bytes);
  }
  std::span<const std::byte> Wait() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <typename Params>
Params WithSequences(Params p, const PassSequences& sequences) {
  const auto& own = static_cast<const CpuSequences&>(sequences);
  p.sequences = own.spans;
  p.page_size = own.page_size;
  return p;
}

class CpuCompressedOps final : public CompressedOps {
 public:
  explicit CpuCompressedOps(ThreadPool& pool) : pool_(pool) {}

  void Compress(const CompressParams& p) override { kernels::Compress(p, pool_); }
  void SelectEntries(const SelectEntriesParams& p, const PassSequences& sequences) override {
    kernels::SelectEntries(WithSequences(p, sequences), pool_);
  }
  void AttendToEntries(const EntryAttentionParams& p, const PassSequences& sequences) override {
    kernels::AttendToEntries(WithSequences(p, sequences), pool_);
  }

 private:
  ThreadPool& pool_;
};

class CpuStreamOps final : public StreamOps {
 public:
  explicit CpuStreamOps(ThreadPool& pool) : pool_(pool) {}

  void Collapse(const CollapseStreamsParams& p) override { CollapseStreams(p, pool_); }
  void Expand(const ExpandStreamsParams& p) override { ExpandStreams(p, pool_); }

 private:
  ThreadPool& pool_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(ThreadPool& pool)
      : pool_(pool), recurrent_(MakeCpuRecurrentOps(pool)), compressed_(pool), streams_(pool) {}

  std::string Describe() const override {
    return fmt::format("CPU, {} threads, {}", pool_.num_threads(), Name(ActiveIsa()));
  }
  bool is_cpu() const override { return true; }
  RecurrentOps* recurrent() override { return recurrent_.get(); }
  CompressedOps* compressed() override { return &compressed_; }
  StreamOps* streams() override { return &streams_; }

  std::shared_ptr<void> Allocate(size_t bytes) override {
    auto tensor =
        std::make_shared<Tensor>(Tensor::Empty(DType::kU8, {static_cast<int64_t>(bytes)}));
    void* memory = tensor->mutable_raw();
    return {std::move(tensor), memory};
  }
  void CopyIn(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  void CopyOut(void* to, const void* from, size_t bytes) override { Copy(to, from, bytes); }
  std::unique_ptr<HostCopy> MakeHostCopy() override { return std::make_unique<CpuHostCopy>(); }
  void Synchronize() override {}

  WeightView Place(const WeightView& w, bool /*plain*/) override { return w; }
  Tensor Place(const Tensor& t) override { return t; }

  std::unique_ptr<PassSequences> MakeSequences() override {
    return std::make_unique<CpuSequences>();
  }
  void Run(uint64_t /*key*/, const std::function<void()>& pass) override { pass(); }

  void Linear(const LinearParams& p) override { kernels::Linear(p, pool_); }
  void LinearGroup(std::span<const LinearParams> parts) override {
    kernels::LinearGroup(parts, pool_);
  }
  void HeadLinear(const HeadLinearParams& p) override { kernels::HeadLinear(p, pool_); }
  void Mlp(const GroupedMlpParams& p) override { GroupedMlp(p, pool_); }
  void RmsNorm(const RmsNormParams& p) override { kernels::RmsNorm(p, pool_); }
  void AddInPlace(float* y, const float* x, int64_t count) override {
    kernels::AddInPlace(y, x, count, pool_);
  }
  void Clamp(float* x, int64_t count, float limit) override;
  void GatherTokens(int32_t* ids, const int32_t* rows, const int32_t* tokens,
                    int64_t count) override {
    for (int64_t i = 0; i < count; ++i)
      if (rows[i] >= 0) ids[i] = std::max(0, tokens[rows[i]]);
  }
  void TokensToFloats(float* y, int64_t ldy, const int32_t* tokens, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) y[i * ldy] = static_cast<float>(tokens[i]);
  }
  void ClearEntries(int32_t* values, const int32_t* index, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) values[index[i]] = 0;
  }
  void Rope(const RopeParams& p) override { kernels::Rope(p, pool_); }
  void Attention(const AttentionParams& p, const PassSequences& sequences) override {
    kernels::Attention(WithSequences(p, sequences), pool_);
  }
  void LatentAttention(const LatentAttentionParams& p, const PassSequences& sequences) override {
    kernels::LatentAttention(WithSequences(p, sequences), pool_);
  }
  void SelectKeys(const SelectKeysParams& p, const PassSequences& sequences) override {
    kernels::SelectKeys(WithSequences(p, sequences), pool_);
  }
  void InheritKeys(const InheritKeysParams& p, const PassSequences& sequences) override {
    kernels::InheritKeys(WithSequences(p, sequences), pool_);
  }
  void StoreKv(const StoreKvParams& p) override { kernels::StoreKv(p, pool_); }
  void Embed(const EmbedParams& p) override { kernels::Embed(p, pool_); }
  void CopyRows(const CopyRowsParams& p) override;
  void MoveRows(const MoveRowsParams& p) override;
  void SumSquares(const SumSquaresParams& p) override;
  void ScaleBySquares(const ScaleBySquaresParams& p) override;
  void LayerNorm(const LayerNormParams& p) override { kernels::LayerNorm(p, pool_); }
  void MultiplyBySigmoid(float* x, const float* gate, int64_t count) override {
    cpu::RunRows(pool_, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] /= 1.0f + std::exp(-gate[i]);
    });
  }
  void MultiplyRowsBySigmoid(float* x, const float* gate, int64_t rows, int64_t n) override {
    cpu::RunRows(pool_, rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float divisor = 1.0f + std::exp(-gate[row]);
        for (int64_t i = 0; i < n; ++i) x[row * n + i] /= divisor;
      }
    });
  }

 private:
  static void Copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  ThreadPool& pool_;
  const std::unique_ptr<RecurrentOps> recurrent_;
  CpuCompressedOps compressed_;
  CpuStreamOps streams_;
};

void CpuDevice::Clamp(float* x, int64_t count, float limit) {
  cpu::RunRows(pool_, count, 1, [&](int64_t begin, int64_t end) {
    // Comparisons keep NaN; fmin and fmax would not.
    for (int64_t i = begin; i < end; ++i)
      x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
  });
}

void CpuDevice::CopyRows(const CopyRowsParams& p) {
  cpu::RunRows(pool_, p.m, p.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = p.rows != nullptr ? p.rows[i] : i;
      std::copy_n(p.x + row * p.ldx, p.n, p.y + i * p.ldy);
    }
  });
}

void CpuDevice::MoveRows(const MoveRowsParams& p) {
  for (const RowArray& array : p.arrays) {
    auto* const rows = static_cast<std::byte*>(array.data);
    for (const RowMove& move : p.moves)
      if (move.from != move.to)
        std::memcpy(rows + move.to * array.row_bytes, rows + move.from * array.row_bytes,
                    array.row_bytes);
  }
}

void CpuDevice::SumSquares(const SumSquaresParams& p) {
  cpu::RunRows(pool_, p.m, p.n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = p.x + t * p.n;
      double sum = 0;
      for (int64_t i = 0; i < p.n; ++i) sum += static_cast<double>(x[i]) * x[i];
      p.squares[t] = static_cast<float>(sum);
    }
  });
}

void CpuDevice::ScaleBySquares(const ScaleBySquaresParams& p) {
  const auto total = static_cast<double>(p.total);
  cpu::RunRows(pool_, p.m, p.n, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* x = p.x + t * p.n;
      const auto inverse = static_cast<float>(1.0 / std::sqrt(p.squares[t] / total + p.eps));
      for (int64_t i = 0; i < p.n; ++i) x[i] = x[i] * inverse * p.weight[i];
    }
  });
}

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(ThreadPool& pool) {
  return std::make_unique<CpuDevice>(pool);
}

}  // namespace switchyard::kernels
