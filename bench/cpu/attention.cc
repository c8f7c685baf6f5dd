#include "bench/cpu/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "core/tensor.h"
#include "kernels/cache_rows.h"
#include "kernels/ops.h"

namespace switchyard::bench {
namespace {

constexpr int32_t kPageSize = 16;

// Head counts and sizes of one rank. `lora` and `rope` are for MLA: one latent row of lora + rope
// elements is the key, and its first lora elements are the value.
struct Heads {
  const char* model;
  int64_t heads, kv_heads, head_dim, lora, rope;

  bool latent() const { return lora > 0; }
  int64_t KeyWidth() const { return latent() ? lora + rope : head_dim; }
  int64_t ValueWidth() const { return latent() ? lora : head_dim; }
};

// `sequences` sequences of `keys` keys each. The last `rows` positions of each sequence are the
// query rows.
struct Load {
  int32_t sequences, rows, keys;
};

constexpr Heads kHeads[] = {
    {"qwen3-30b-a3b", 32, 4, 128, 0, 0},
    {"deepseek-v3 tp 8", 16, 1, 0, 512, 64},
};
// The type of the cache. `pairs`: queries and softmax numerators are rounded to bfloat16.
struct Numbers {
  DType dtype;
  bool pairs = false;
};
constexpr Numbers kNumbers[] = {
    {DType::kF32}, {DType::kBF16}, {DType::kBF16, true}, {DType::kF8E4M3}, {DType::kI8}};

constexpr Load kLoads[] = {{1, 1, 16384}, {8, 1, 2048}, {1, 512, 512}, {1, 512, 16384}};

class Case {
 public:
  Case(const Heads& heads, const Load& load, const Numbers& numbers)
      : h_(heads), load_(load), dtype_(numbers.dtype), pairs_(numbers.pairs) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const int64_t slots = int64_t{load.sequences} * Pages() * kPageSize;
    const int64_t rows = slots * h_.kv_heads, width = h_.KeyWidth();
    const int64_t bytes = kernels::CacheRowBytes(dtype_, width);
    std::vector<float> row(width);
    for (Tensor* cache : {&k_, &v_}) {
      *cache = Tensor::Empty(DType::kU8, {rows * bytes});
      for (int64_t i = 0; i < rows; ++i) {
        if (i < kDifferentRows) {
          for (float& v : row) v = normal(random);
        }
        kernels::WriteCacheRow(dtype_, row.data(), width,
                               static_cast<char*>(cache->mutable_raw()) + i * bytes);
      }
      if (h_.latent()) break;
    }
    const int64_t queries = int64_t{load.sequences} * load.rows;
    q_.resize(queries * h_.heads * width);
    for (float& v : q_) v = normal(random);
    out_.resize(queries * h_.heads * h_.ValueWidth());
    pages_.resize(load.sequences * Pages());
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = static_cast<int32_t>(i);
    std::shuffle(pages_.begin(), pages_.end(), random);
    for (int32_t s = 0; s < load.sequences; ++s) {
      spans_.push_back({.row_begin = s * load.rows,
                        .rows = load.rows,
                        .kv_len = load.keys,
                        .pages = pages_.data() + s * Pages()});
    }
  }

  void Run(ThreadPool& pool) {
    const int64_t ldq = h_.heads * h_.KeyWidth(), ldo = h_.heads * h_.ValueWidth();
    if (h_.latent()) {
      return kernels::LatentAttention({.q = q_.data(),
                                       .ldq = ldq,
                                       .cache = k_.raw(),
                                       .kv_dtype = dtype_,
                                       .heads = h_.heads,
                                       .lora = h_.lora,
                                       .rope = h_.rope,
                                       .page_size = kPageSize,
                                       .scale = 0.1f,
                                       .bfloat16_rows = pairs_,
                                       .sequences = spans_,
                                       .out = out_.data(),
                                       .ldo = ldo},
                                      pool);
    }
    kernels::Attention({.q = q_.data(),
                        .ldq = ldq,
                        .k_cache = k_.raw(),
                        .v_cache = v_.raw(),
                        .kv_dtype = dtype_,
                        .heads = h_.heads,
                        .kv_heads = h_.kv_heads,
                        .head_dim = h_.head_dim,
                        .page_size = kPageSize,
                        .scale = 0.1f,
                        .bfloat16_rows = pairs_,
                        .sequences = spans_,
                        .out = out_.data(),
                        .ldo = ldo},
                       pool);
  }

  // Every row is multiplied by the keys up to the row's position. The resulting scores are
  // multiplied by the values of these positions.
  double Operations() const {
    const double keys = load_.keys - (load_.rows - 1) / 2.0;
    return 2.0 * load_.sequences * load_.rows * keys *
           static_cast<double>(h_.heads * (h_.KeyWidth() + h_.ValueWidth()));
  }
  double Bytes() const {
    const int64_t rows = h_.latent() ? 1 : 2 * h_.kv_heads;
    return static_cast<double>(int64_t{load_.sequences} * load_.keys * rows *
                               kernels::CacheRowBytes(dtype_, h_.KeyWidth()));
  }

 private:
  // Number of random rows. All later positions copy the last of them, because generation is slow.
  static constexpr int64_t kDifferentRows = 4096;
  int64_t Pages() const { return (load_.keys + kPageSize - 1) / kPageSize; }

  const Heads h_;
  const Load load_;
  const DType dtype_;
  const bool pairs_;
  Tensor k_, v_;
  std::vector<float> q_, out_;
  std::vector<int32_t> pages_;
  std::vector<kernels::SequenceSpan> spans_;
};

}  // namespace

void BenchAttention(const CpuCeilings& ceilings, ThreadPool& pool, Report& report) {
  constexpr const char* kName = "attention";
  for (const Heads& heads : kHeads) {
    for (const Numbers& numbers : kNumbers) {
      if (numbers.pairs && !kernels::HasBFloat16Products(kernels::ActiveIsa())) continue;
      const double peak = numbers.pairs ? ceilings.bf16_peak : ceilings.peak;
      for (const Load& load : kLoads) {
        const std::string shape = fmt::format("{}{} {} x {} rows on {} keys, {}",
                                              Name(numbers.dtype), numbers.pairs ? " pairs" : "",
                                              load.sequences, load.rows, load.keys, heads.model);
        if (!report.Wants(kName, shape)) continue;
        report.Start(kName, shape);
        Case c(heads, load, numbers);
        const double seconds = MedianSeconds([&] { c.Run(pool); });
        report.Add({.name = kName,
                    .shape = shape,
                    .seconds = seconds,
                    .flops = c.Operations(),
                    .bytes = c.Bytes(),
                    .limit = Roofline(c.Bytes(), ceilings.bandwidth, c.Operations(), peak)});
      }
    }
  }
}

}  // namespace switchyard::bench
