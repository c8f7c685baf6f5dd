// Sequences with paged caches for the tests of GPU attention. A batch consists of chunks of these
// sequences.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cache_rows.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/reference.h"
#include "kernels/testing.h"

namespace switchyard::cuda {

struct AttentionShape {
  int64_t heads = 1, kv_heads = 1, head_dim = 64;
  int64_t rope = 0;  // nonzero: latent attention with lora = head_dim − rope
  int32_t page_size = 16;
  DType dtype = DType::kBF16;
  int32_t window = 0, chunk = 0;
  bool sinks = false;
  int64_t value_dim = 0;  // of grouped attention; 0: head_dim
  float value_scale = 1.0f;
  bool scales = false;  // of kF8E4M3

  int64_t out_dim() const { return value_dim > 0 ? value_dim : head_dim - rope; }
};

// Rows [begin, end) of a sequence that has `end` keys at that time.
struct AttentionChunk {
  int sequence = 0;
  int32_t begin = 0, end = 0;
};

// The stream and the GPU memory of all runs. Each allocation, its zeroing and its release wait for
// the GPU. With memory of its own, a run took 0.15 s beside other tests.
class RunMemory {
 public:
  // Never freed, because the CUDA driver may end before static objects.
  static RunMemory& OfProcess() {
    static auto* const memory = new RunMemory;
    return *memory;
  }

  void Clear() { bytes_.clear(); }
  // Adds an array, and zeros after it. Returns its place.
  template <typename T>
  size_t Add(const std::vector<T>& from) {
    constexpr size_t kAlignment = 512, kZeros = 16;
    const size_t at = bytes_.size(), size = from.size() * sizeof(T);
    bytes_.resize((at + size + kZeros + kAlignment - 1) / kAlignment * kAlignment);
    if (size > 0) std::memcpy(bytes_.data() + at, from.data(), size);
    return at;
  }
  // Copies all arrays to the GPU.
  void Upload() {
    if (arrays_.bytes() < bytes_.size()) arrays_ = DeviceMemory(bytes_.size() + bytes_.size() / 2);
    CopyToDevice(arrays_.data(), bytes_.data(), bytes_.size(), "copy to the GPU");
  }
  // An array on the GPU.
  template <typename T>
  T* At(size_t place) const {
    return reinterpret_cast<T*>(arrays_.data() + place);
  }
  // Scratch memory of exactly this size, with what earlier runs left there.
  std::span<std::byte> Scratch(size_t bytes) {
    if (bytes == 0) return {};
    if (scratch_.bytes() != bytes) scratch_ = DeviceMemory(bytes);
    return {scratch_.data(), bytes};
  }
  const Stream& stream() const { return stream_; }

 private:
  const Stream stream_;
  std::vector<char> bytes_;  // of all arrays
  DeviceMemory arrays_, scratch_;
};

class AttentionSequences {
 public:
  AttentionSequences(kernels::Random& random, const AttentionShape& shape,
                     std::vector<int32_t> lengths)
      : shape_(shape), lengths_(std::move(lengths)) {
    for (const int32_t length : lengths_) {
      queries_.push_back(Rounded(random.Normal(length * shape.heads * shape.head_dim)));
      keys_.push_back(random.Normal(length * Width()));
      values_.push_back(random.Normal(length * ValueWidth()));
    }
    sinks_ = random.Normal(shape.heads, 2.0f);
    for (int64_t h = 0; h < shape.kv_heads; ++h) {
      k_scales_.push_back(random.Pick({0.3f, 0.9f, 1.9f}));
      v_scales_.push_back(shape.rope > 0 ? k_scales_.back() : random.Pick({0.02f, 0.6f, 1.7f}));
    }
    LayOut(random);
  }

  // The same sequences with a cache in bfloat16 that has the numbers of the codes. Of kF8E4M3
  // without scales.
  AttentionSequences InBFloat16OfCodes(kernels::Random& random) const {
    AttentionSequences other = *this;
    other.shape_.dtype = DType::kBF16;
    for (auto* rows : {&other.keys_, &other.values_}) {
      for (std::vector<float>& x : *rows) {
        std::vector<uint8_t> codes(x.size());
        const auto n = static_cast<int64_t>(x.size());
        kernels::WriteCacheRow(DType::kF8E4M3, x.data(), n, codes.data());
        kernels::ReadCacheRow(DType::kF8E4M3, codes.data(), n, x.data());
      }
    }
    other.LayOut(random);
    return other;
  }

  // Assigns new pages, among pages of garbage.
  void LayOut(kernels::Random& random) {
    const int32_t page_size = shape_.page_size;
    pages_.clear();
    int32_t count = 0;
    for (const int32_t length : lengths_) count += (length + page_size - 1) / page_size;
    const int32_t spare = 3;
    const std::vector<int32_t> order = random.Shuffled(count + spare);
    const int64_t slot_bytes = (count + spare) * page_size * SizeOf(shape_.dtype);
    k_.assign(slot_bytes * Width(), static_cast<char>(0xff));  // NaN, and −480 in e4m3
    v_.assign(slot_bytes * ValueWidth(), static_cast<char>(0xff));
    const int32_t* next = order.data();
    for (size_t s = 0; s < lengths_.size(); ++s) {
      const int32_t length = lengths_[s], own = (length + page_size - 1) / page_size;
      pages_.emplace_back(next, next + own);
      next += own;
      std::vector<int32_t> slots(length);
      for (int32_t j = 0; j < length; ++j)
        slots[j] = pages_[s][j / page_size] * page_size + j % page_size;
      const auto store = [&](const std::vector<float>& from, int64_t width,
                             const std::vector<float>& scales, std::vector<char>& to) {
        kernels::reference::StoreKv({.x = from.data(),
                                     .ldx = width,
                                     .m = length,
                                     .n = width,
                                     .slots = slots.data(),
                                     .cache = to.data(),
                                     .dtype = shape_.dtype,
                                     .scales = shape_.scales ? scales.data() : nullptr,
                                     .heads = shape_.kv_heads});
      };
      store(keys_[s], Width(), k_scales_, k_);
      store(values_[s], ValueWidth(), v_scales_, v_);
    }
  }

  // Output rows of the chunks, concatenated: [rows, heads, out_dim].
  std::vector<float> Reference(const std::vector<AttentionChunk>& chunks) const {
    Pass pass = MakePass(chunks, 0);
    std::vector<float> out(pass.num_rows * OutWidth());
    if (shape_.rope > 0) {
      kernels::LatentAttentionParams p = Latent();
      p.q = pass.queries.data();
      p.cache = k_.data();
      p.cache_scale = shape_.scales ? k_scales_.data() : nullptr;
      p.out = out.data();
      p.sequences = pass.spans;
      kernels::reference::LatentAttention(p);
    } else {
      kernels::AttentionParams p = Grouped();
      p.q = pass.queries.data();
      p.k_cache = k_.data();
      p.v_cache = v_.data();
      p.k_scales = shape_.scales ? k_scales_.data() : nullptr;
      p.v_scales = shape_.scales ? v_scales_.data() : nullptr;
      p.sinks = shape_.sinks ? sinks_.data() : nullptr;
      p.out = out.data();
      p.sequences = pass.spans;
      kernels::reference::Attention(p);
    }
    return out;
  }

  // Whether RunToBFloat16 is supported.
  bool HasBFloat16Output() const {
    return shape_.rope == 0 && AttentionToBFloat16(Grouped(), /*exact=*/false);
  }
  // Queries and output in bfloat16, without exact arithmetic.
  std::vector<float> RunToBFloat16(const std::vector<AttentionChunk>& chunks) const {
    return Run(chunks, false, kAttentionScratchBytes, 0, /*to_bfloat16=*/true);
  }
  // The output rows of Reference, computed on the GPU. An empty sequence and `gap` rows that belong
  // to no sequence precede each chunk. The kernel must not write these rows.
  std::vector<float> Run(const std::vector<AttentionChunk>& chunks, bool exact,
                         size_t scratch_bytes = kAttentionScratchBytes, int32_t gap = 0,
                         bool to_bfloat16 = false) const {
    const Pass pass = MakePass(chunks, gap);
    const size_t num_sequences = pass.rows.size();
    RunMemory& memory = RunMemory::OfProcess();
    memory.Clear();
    const size_t q = memory.Add(to_bfloat16 ? InBFloat16(pass.queries) : pass.queries);
    const size_t k = memory.Add(k_), v = memory.Add(v_), sinks = memory.Add(sinks_),
                 k_scales = memory.Add(k_scales_), v_scales = memory.Add(v_scales_),
                 row_begin = memory.Add(pass.row_begin), rows = memory.Add(pass.rows),
                 kv_len = memory.Add(pass.kv_len), pages = memory.Add(pass.pages),
                 row_sequence = memory.Add(pass.row_sequence);
    constexpr float kUntouched = 77.0f;
    std::vector<float> all(pass.num_rows * OutWidth(), kUntouched);
    const size_t out = memory.Add(all);
    memory.Upload();
    const SequenceTable table = {.row_begin = memory.At<int32_t>(row_begin),
                                 .rows = memory.At<int32_t>(rows),
                                 .kv_len = memory.At<int32_t>(kv_len),
                                 .pages = memory.At<int32_t>(pages),
                                 .row_sequence = memory.At<int32_t>(row_sequence),
                                 .num_sequences = static_cast<int32_t>(num_sequences),
                                 .num_rows = static_cast<int32_t>(pass.num_rows),
                                 .max_pages = MaxPages(),
                                 .page_size = shape_.page_size};
    const Stream& stream = memory.stream();
    const std::span<std::byte> room = memory.Scratch(scratch_bytes);
    if (shape_.rope > 0) {
      kernels::LatentAttentionParams p = Latent();
      p.q = memory.At<float>(q);
      p.cache = memory.At<char>(k);
      p.cache_scale = shape_.scales ? memory.At<float>(k_scales) : nullptr;
      p.out = memory.At<float>(out);
      LatentAttention(p, table, exact, stream.get(), room);
    } else {
      kernels::AttentionParams p = Grouped();
      p.q = memory.At<float>(q);
      p.k_cache = memory.At<char>(k);
      p.v_cache = memory.At<char>(v);
      p.k_scales = shape_.scales ? memory.At<float>(k_scales) : nullptr;
      p.v_scales = shape_.scales ? memory.At<float>(v_scales) : nullptr;
      p.sinks = shape_.sinks ? memory.At<float>(sinks) : nullptr;
      if (to_bfloat16) {
        p.bf16_out = memory.At<char>(out);
        p.bf16_queries = true;
      } else {
        p.out = memory.At<float>(out);
      }
      Attention(p, table, exact, stream.get(), room);
    }
    stream.Synchronize();
    if (to_bfloat16) {
      std::vector<uint16_t> rounded(all.size());
      Check(cudaMemcpy(rounded.data(), memory.At<char>(out), rounded.size() * sizeof(uint16_t),
                       cudaMemcpyDeviceToHost),
            "copy of the result");
      kernels::ReadCacheRow(DType::kBF16, rounded.data(), static_cast<int64_t>(all.size()),
                            all.data());
      return all;
    }
    Check(cudaMemcpy(all.data(), memory.At<char>(out), all.size() * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "copy of the result");
    std::vector<float> result;
    for (int64_t row = 0; row < pass.num_rows; ++row) {
      const float* from = all.data() + row * OutWidth();
      if (pass.row_sequence[row] >= 0) {
        result.insert(result.end(), from, from + OutWidth());
      } else {
        for (int64_t i = 0; i < OutWidth(); ++i) EXPECT_EQ(from[i], kUntouched) << row;
      }
    }
    return result;
  }

  int64_t OutWidth() const { return shape_.heads * shape_.out_dim(); }

 private:
  // The arrays of SequenceTable, on the host.
  struct Pass {
    std::vector<int32_t> row_begin, rows, kv_len, pages, row_sequence;
    std::vector<float> queries;
    std::vector<kernels::SequenceSpan> spans;
    int64_t num_rows = 0;
  };

  Pass MakePass(const std::vector<AttentionChunk>& chunks, int32_t gap) const {
    Pass pass;
    const int64_t width = shape_.heads * shape_.head_dim;
    const auto add = [&](int32_t rows, int32_t kv_len, const std::vector<int32_t>& pages) {
      pass.row_begin.push_back(static_cast<int32_t>(pass.num_rows));
      pass.rows.push_back(rows);
      pass.kv_len.push_back(kv_len);
      const size_t begin = pass.pages.size();
      pass.pages.resize(begin + MaxPages());
      std::copy_n(pages.begin(), (kv_len + shape_.page_size - 1) / shape_.page_size,
                  pass.pages.begin() + static_cast<int64_t>(begin));
    };
    for (const AttentionChunk& chunk : chunks) {
      if (gap > 0) {
        add(0, 0, {});
        pass.num_rows += gap;
        pass.row_sequence.insert(pass.row_sequence.end(), gap, -1);
        pass.queries.resize(pass.num_rows * width, 1.0f);
      }
      add(chunk.end - chunk.begin, chunk.end, pages_[chunk.sequence]);
      pass.spans.push_back({.row_begin = pass.row_begin.back(),
                            .rows = pass.rows.back(),
                            .kv_len = chunk.end,
                            .pages = pages_[chunk.sequence].data()});
      pass.row_sequence.insert(pass.row_sequence.end(), chunk.end - chunk.begin,
                               static_cast<int32_t>(pass.rows.size()) - 1);
      pass.num_rows += chunk.end - chunk.begin;
      const float* q = queries_[chunk.sequence].data();
      pass.queries.insert(pass.queries.end(), q + chunk.begin * width, q + chunk.end * width);
    }
    return pass;
  }

  kernels::AttentionParams Grouped() const {
    return {.ldq = shape_.heads * shape_.head_dim,
            .kv_dtype = shape_.dtype,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .v_dim = shape_.value_dim,
            .value_scale = shape_.value_scale,
            .page_size = shape_.page_size,
            .scale = Scale(),
            .window = shape_.window,
            .chunk = shape_.chunk,
            .ldo = OutWidth()};
  }
  kernels::LatentAttentionParams Latent() const {
    return {.ldq = shape_.heads * shape_.head_dim,
            .kv_dtype = shape_.dtype,
            .heads = shape_.heads,
            .lora = shape_.out_dim(),
            .rope = shape_.rope,
            .page_size = shape_.page_size,
            .scale = Scale(),
            .ldo = OutWidth()};
  }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  int64_t Width() const { return shape_.kv_heads * shape_.head_dim; }
  int64_t ValueWidth() const {
    return shape_.kv_heads * (shape_.value_dim > 0 ? shape_.value_dim : shape_.head_dim);
  }
  int32_t MaxPages() const { return 8192 / shape_.page_size; }

  // The queries as AttentionParams::bf16_queries describes them, with NaN after each head.
  std::vector<float> InBFloat16(std::vector<float> queries) const {
    const int64_t n = shape_.head_dim;
    std::vector<uint16_t> head(2 * n, 0xffff);
    for (size_t at = 0; at < queries.size(); at += n) {
      kernels::WriteCacheRow(DType::kBF16, queries.data() + at, n, head.data());
      std::memcpy(queries.data() + at, head.data(), n * sizeof(float));
    }
    return queries;
  }

  // Queries representable in bfloat16, so that the reference has the same inputs.
  static std::vector<float> Rounded(std::vector<float> x) {
    const auto n = static_cast<int64_t>(x.size());
    std::vector<uint16_t> rounded(x.size());
    kernels::WriteCacheRow(DType::kBF16, x.data(), n, rounded.data());
    kernels::ReadCacheRow(DType::kBF16, rounded.data(), n, x.data());
    return x;
  }

  AttentionShape shape_;
  std::vector<int32_t> lengths_;
  std::vector<std::vector<float>> queries_, keys_, values_;  // [sequence]
  std::vector<float> sinks_, k_scales_, v_scales_;
  std::vector<std::vector<int32_t>> pages_;  // [sequence]
  std::vector<char> k_, v_;
};

}  // namespace switchyard::cuda
