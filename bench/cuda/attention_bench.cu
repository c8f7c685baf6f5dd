// Attention on one GPU, decode and prefill, with the head counts of Qwen3-30B-A3B, gpt-oss and
// DeepSeek-V3. The reported bytes are those of keys, values, queries and outputs.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "kernels/cuda/attention/attention.h"

namespace switchyard::bench {
namespace {

using cuda::SequenceTable;

constexpr int kPageSize = 64;  // in cases that do not name it

struct Shape {
  const char* name;
  int heads, kv_heads, qk_dim, v_dim;  // latent (MLA) if qk_dim and v_dim differ
  bool latent() const { return qk_dim != v_dim; }
};

// `batch` sequences of `rows` query rows and `keys` keys each. Every call reads another layer's
// cache, so that no call hits the L2 cache.
void Case(const Shape& s, int batch, int rows, int keys, bool exact, const GpuMachine& machine,
          Report& report, int page_size = kPageSize) {
  const std::string name = "attention";
  const std::string shape =
      Text("%s %d x %d rows %d keys%s%s", s.name, batch, rows, keys, exact ? " exact" : "",
           page_size == kPageSize ? "" : Text(", pages of %d", page_size).c_str());
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);
  const int pages_each = (keys + page_size - 1) / page_size;
  const int64_t slots = int64_t{batch} * pages_each * page_size;
  const int64_t width = int64_t{s.kv_heads} * s.qk_dim;
  const int64_t cache_bytes = slots * width * 2 * (s.latent() ? 1 : 2);
  const int layers = static_cast<int>(std::clamp<int64_t>((200 << 20) / cache_bytes, 2, 48));
  const int64_t num_rows = int64_t{batch} * rows;
  const DeviceArray<__nv_bfloat16> k(layers * slots * width);
  const DeviceArray<__nv_bfloat16> v(s.latent() ? 1 : layers * slots * width);
  const DeviceArray<float> q(num_rows * s.heads * s.qk_dim), out(num_rows * s.heads * s.v_dim);
  const DeviceArray<std::byte> scratch(cuda::kAttentionScratchBytes);
  FillUniform<<<1024, 256>>>(k.data, layers * slots * width, 1);
  if (!s.latent()) FillUniform<<<1024, 256>>>(v.data, layers * slots * width, uint64_t{1} << 40);
  // Queries and outputs are in bfloat16 if the layers of a model pass them so, as on Hopper.
  const bool in_bf16 = !s.latent() && cuda::AttentionToBFloat16(
                                          {.kv_dtype = DType::kBF16, .head_dim = s.qk_dim}, exact);
  if (in_bf16) {
    FillUniform<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(q.data),
                               2 * num_rows * s.heads * s.qk_dim, uint64_t{1} << 41);
  } else {
    FillUniform<<<1024, 256>>>(q.data, num_rows * s.heads * s.qk_dim, uint64_t{1} << 41);
  }

  std::vector<int32_t> row_begin(batch), all_rows(batch, rows), kv_len(batch, keys);
  std::vector<int32_t> pages(int64_t{batch} * pages_each), row_sequence(num_rows);
  for (int i = 0; i < batch; ++i) row_begin[i] = i * rows;
  for (int64_t i = 0; i < num_rows; ++i) row_sequence[i] = static_cast<int32_t>(i / rows);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  const DeviceArray<int32_t> device_row_begin(row_begin), device_rows(all_rows),
      device_kv_len(kv_len), device_pages(pages), device_row_sequence(row_sequence);
  const SequenceTable table = {.row_begin = device_row_begin.data,
                               .rows = device_rows.data,
                               .kv_len = device_kv_len.data,
                               .pages = device_pages.data,
                               .row_sequence = device_row_sequence.data,
                               .num_sequences = batch,
                               .num_rows = static_cast<int32_t>(num_rows),
                               .max_pages = pages_each,
                               .page_size = page_size};
  const std::span<std::byte> room(scratch.data, cuda::kAttentionScratchBytes);
  const auto call = [&](int layer, cudaStream_t stream) {
    const __nv_bfloat16* keys_of_layer = k.data + layer * slots * width;
    if (s.latent()) {
      cuda::LatentAttention({.q = q.data,
                             .ldq = int64_t{s.heads} * s.qk_dim,
                             .cache = keys_of_layer,
                             .kv_dtype = DType::kBF16,
                             .heads = s.heads,
                             .lora = s.v_dim,
                             .rope = s.qk_dim - s.v_dim,
                             .scale = 0.05f,
                             .out = out.data,
                             .ldo = int64_t{s.heads} * s.v_dim},
                            table, exact, stream, room);
    } else {
      cuda::Attention({.q = q.data,
                       .ldq = int64_t{s.heads} * s.qk_dim,
                       .bf16_queries = in_bf16,
                       .k_cache = keys_of_layer,
                       .v_cache = v.data + layer * slots * width,
                       .kv_dtype = DType::kBF16,
                       .heads = s.heads,
                       .kv_heads = s.kv_heads,
                       .head_dim = s.qk_dim,
                       .scale = 0.1f,
                       .out = in_bf16 ? nullptr : out.data,
                       .ldo = int64_t{s.heads} * s.v_dim,
                       .bf16_out = in_bf16 ? out.data : nullptr},
                      table, exact, stream, room);
    }
  };
  const double seconds = GraphSeconds(layers, call);
  const double visits = double{1.0} * batch * rows * (keys - (rows - 1) / 2.0);  // per head
  const double flops = 2.0 * visits * s.heads * (s.qk_dim + s.v_dim);
  const double bytes =
      static_cast<double>(int64_t{batch} * keys * width * 2) * (s.latent() ? 1 : 2) +
      (in_bf16 ? 2.0 : 4.0) * num_rows * s.heads * (s.qk_dim + s.v_dim);
  report.Add({.name = name,
              .shape = shape,
              .seconds = seconds,
              .flops = flops,
              .bytes = bytes,
              .limit = Roofline(bytes, machine.bandwidth(), flops, machine.bf16)});
}

}  // namespace

void AttentionBench(const Options&, const GpuMachine& machine, Report& report) {
  const Shape qwen = {"qwen3-30b 32/4 x 128", 32, 4, 128, 128};
  const Shape oss = {"gpt-oss 64/8 x 64", 64, 8, 64, 64};
  const Shape mla = {"deepseek-v3 128 heads", 128, 1, 576, 512};
  const Shape mla8 = {"deepseek-v3 16 heads", 16, 1, 576, 512};
  // Short sequences; an engine has pages of 16 by default.
  for (const Shape& s : {qwen, oss, mla8}) {
    for (const int batch : {1, 8, 64, 128, 256}) Case(s, batch, 1, 512, false, machine, report);
    for (const int batch : {32, 128, 256}) Case(s, batch, 1, 520, false, machine, report, 16);
  }
  for (const Shape& s : {qwen, oss, mla, mla8}) {
    for (const auto [batch, keys] :
         {std::pair{1, 1024}, std::pair{1, 4096}, std::pair{1, 32768}, std::pair{8, 4096},
          std::pair{32, 512}, std::pair{32, 4096}, std::pair{128, 1024}, std::pair{128, 4096},
          std::pair{256, 128}, std::pair{256, 576}, std::pair{256, 2048}})
      Case(s, batch, 1, keys, false, machine, report);
    for (const auto [batch, rows, keys] :
         {std::tuple{1, 256, 4096}, std::tuple{1, 1024, 1024}, std::tuple{1, 4096, 4096},
          std::tuple{8, 512, 512}, std::tuple{16, 512, 512}, std::tuple{1, 2048, 16384},
          std::tuple{1, 8192, 8192}})
      Case(s, batch, rows, keys, false, machine, report);
  }
  for (const Shape& s : {qwen, mla}) {
    Case(s, 32, 1, 4096, true, machine, report);
    Case(s, 1, 256, 1024, true, machine, report);
  }
}

}  // namespace switchyard::bench
