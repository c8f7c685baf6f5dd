// Attention on one GPU, decode and prefill, with the head counts of Qwen3-30B-A3B, gpt-oss,
// Qwen3-Next-80B, MiMo-V2-Flash and DeepSeek-V3, and the sparse attention of DeepSeek-V3.2; with a
// cache in bfloat16, and for some shapes in e4m3 ("fp8 cache"). The reported bytes are those of
// keys, values, queries and outputs.
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
#include "kernels/cuda/attention/select_keys.h"

namespace switchyard::bench {
namespace {

using cuda::SequenceTable;

constexpr int kPageSize = 64;  // in cases that do not name it

struct Shape {
  const char* name;
  int heads, kv_heads, qk_dim, v_dim;
  bool latent = false;  // MLA: values are parts of the keys
  int topk = 0;         // keys that a query attends to; 0: all
  bool codes = false;   // the cache has e4m3 codes

  DType cache() const { return codes ? DType::kF8E4M3 : DType::kBF16; }
};

// `batch` sequences of `rows` query rows and `keys` keys each, with pages in random order.
class Sequences {
 public:
  Sequences(int batch, int rows, int keys, int page_size)
      : pages_(Shuffled(batch * PagesOf(keys, page_size))),
        device_row_begin_(Multiples(batch, rows)),
        device_rows_(std::vector<int32_t>(batch, rows)),
        device_kv_len_(std::vector<int32_t>(batch, keys)),
        device_pages_(pages_),
        device_row_sequence_(Repeated(batch, rows)) {
    table_ = {.row_begin = device_row_begin_.data,
              .rows = device_rows_.data,
              .kv_len = device_kv_len_.data,
              .pages = device_pages_.data,
              .row_sequence = device_row_sequence_.data,
              .num_sequences = batch,
              .num_rows = batch * rows,
              .max_pages = PagesOf(keys, page_size),
              .page_size = page_size};
  }
  const SequenceTable& table() const { return table_; }
  int64_t slots() const { return std::ssize(pages_) * table_.page_size; }
  // For each row the slots of `topk` keys of its sequence, at about equal distances.
  std::vector<int32_t> Selection(int keys, int topk) const {
    std::vector<int32_t> selected;
    const int rows = table_.num_rows / table_.num_sequences;
    for (int row = 0; row < table_.num_rows; ++row) {
      const int32_t* const pages = pages_.data() + int64_t{row / rows} * table_.max_pages;
      for (int64_t i = 0; i < topk; ++i) {
        const auto key = static_cast<int32_t>(i * keys / topk);
        selected.push_back(pages[key / table_.page_size] * table_.page_size +
                           key % table_.page_size);
      }
    }
    return selected;
  }

 private:
  static int PagesOf(int keys, int page_size) { return (keys + page_size - 1) / page_size; }
  static std::vector<int32_t> Shuffled(int count) {
    std::vector<int32_t> pages(count);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
    return pages;
  }
  static std::vector<int32_t> Multiples(int count, int of) {
    std::vector<int32_t> values(count);
    for (int i = 0; i < count; ++i) values[i] = i * of;
    return values;
  }
  static std::vector<int32_t> Repeated(int count, int times) {
    std::vector<int32_t> values(int64_t{count} * times);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i) / times;
    return values;
  }

  const std::vector<int32_t> pages_;
  const DeviceArray<int32_t> device_row_begin_, device_rows_, device_kv_len_, device_pages_,
      device_row_sequence_;
  SequenceTable table_;
};

// The caches of all layers, filled with numbers in [−2, 2). Codes are about 30 times as large,
// which their scales undo.
class Caches {
 public:
  // `elements`: of each layer.
  Caches(const Shape& s, int layers, int64_t elements, uint64_t seed)
      : element_bytes_(s.codes ? 1 : 2),
        elements_(elements),
        memory_(std::max<int64_t>(1, layers * elements * element_bytes_)) {
    if (s.codes) {
      FillUniform<<<1024, 256>>>(reinterpret_cast<__nv_fp8_e4m3*>(memory_.data), layers * elements,
                                 seed);
    } else {
      FillUniform<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(memory_.data), layers * elements,
                                 seed);
    }
  }
  const std::byte* OfLayer(int layer) const {
    return memory_.data + layer * elements_ * element_bytes_;
  }

 private:
  const int64_t element_bytes_, elements_;
  const DeviceArray<std::byte> memory_;
};

// `batch` sequences of `rows` query rows and `keys` keys each. Every call reads another layer's
// cache, so that no call hits the L2 cache.
void Case(const Shape& s, int batch, int rows, int keys, bool exact, const GpuMachine& machine,
          Report& report, int page_size = kPageSize, bool chained = false) {
  const std::string name = "attention";
  const std::string shape =
      Text("%s %d x %d rows %d keys%s%s%s%s%s", s.name, batch, rows, keys, exact ? " exact" : "",
           s.codes ? ", fp8 cache" : "",
           page_size == kPageSize ? "" : Text(", pages of %d", page_size).c_str(),
           s.topk == 0 ? "" : Text(", top %d", s.topk).c_str(), chained ? " in a chain" : "");
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);
  const Sequences sequences(batch, rows, keys, page_size);
  const SequenceTable& table = sequences.table();
  const int64_t slots = sequences.slots(), width = int64_t{s.kv_heads} * s.qk_dim;
  const int64_t v_width = s.latent ? 0 : int64_t{s.kv_heads} * s.v_dim;
  const int64_t element_bytes = s.codes ? 1 : 2;
  const int64_t cache_bytes = slots * (width + v_width) * element_bytes;
  const int layers = static_cast<int>(std::clamp<int64_t>((200 << 20) / cache_bytes, 2, 48));
  const int64_t num_rows = int64_t{batch} * rows;
  const Caches k(s, layers, slots * width, 1);
  const Caches v(s, layers, slots * v_width, uint64_t{1} << 40);
  const DeviceArray<float> scales(std::vector<float>(s.kv_heads, 1.0f / 30.0f));
  const DeviceArray<float> q(num_rows * s.heads * s.qk_dim), out(num_rows * s.heads * s.v_dim);
  const DeviceArray<std::byte> scratch(cuda::kAttentionScratchBytes);
  // Queries and outputs are in bfloat16 if the layers of a model pass them so, as on Hopper.
  const bool in_bf16 =
      !s.latent && cuda::AttentionToBFloat16(
                       {.kv_dtype = s.cache(), .head_dim = s.qk_dim, .v_dim = s.v_dim}, exact);
  if (in_bf16) {
    FillUniform<<<1024, 256>>>(reinterpret_cast<__nv_bfloat16*>(q.data),
                               2 * num_rows * s.heads * s.qk_dim, uint64_t{1} << 41);
  } else {
    FillUniform<<<1024, 256>>>(q.data, num_rows * s.heads * s.qk_dim, uint64_t{1} << 41);
  }

  const DeviceArray<int32_t> selected(s.topk > 0 ? sequences.Selection(keys, s.topk)
                                                 : std::vector<int32_t>(1));
  const std::span<std::byte> room(scratch.data, cuda::kAttentionScratchBytes);
  const auto call = [&](int layer, cudaStream_t on) {
    const cuda::PdlStream stream(on, chained);
    const float* const scales_of_codes = s.codes ? scales.data : nullptr;
    if (s.latent) {
      cuda::LatentAttention({.q = q.data,
                             .ldq = int64_t{s.heads} * s.qk_dim,
                             .cache = k.OfLayer(layer),
                             .kv_dtype = s.cache(),
                             .cache_scale = scales_of_codes,
                             .heads = s.heads,
                             .lora = s.v_dim,
                             .rope = s.qk_dim - s.v_dim,
                             .scale = 0.05f,
                             .selected = s.topk > 0 ? selected.data : nullptr,
                             .topk = s.topk,
                             .out = out.data,
                             .ldo = int64_t{s.heads} * s.v_dim},
                            table, exact, stream, room);
    } else {
      cuda::Attention({.q = q.data,
                       .ldq = int64_t{s.heads} * s.qk_dim,
                       .bf16_queries = in_bf16,
                       .k_cache = k.OfLayer(layer),
                       .v_cache = v.OfLayer(layer),
                       .kv_dtype = s.cache(),
                       .k_scales = scales_of_codes,
                       .v_scales = scales_of_codes,
                       .heads = s.heads,
                       .kv_heads = s.kv_heads,
                       .head_dim = s.qk_dim,
                       .v_dim = s.v_dim,
                       .scale = 0.1f,
                       .out = in_bf16 ? nullptr : out.data,
                       .ldo = int64_t{s.heads} * s.v_dim,
                       .bf16_out = in_bf16 ? out.data : nullptr},
                      table, exact, stream, room);
    }
  };
  const double seconds = GraphSeconds(layers, call);
  const double visits =  // per head
      double{1.0} * batch * rows * (s.topk > 0 ? s.topk : keys - (rows - 1) / 2.0);
  const double flops = 2.0 * visits * s.heads * (s.qk_dim + s.v_dim);
  const int64_t read_keys = s.topk > 0 ? std::min<int64_t>(int64_t{batch} * keys, num_rows * s.topk)
                                       : int64_t{batch} * keys;
  const double bytes = static_cast<double>(read_keys * (width + v_width) * element_bytes) +
                       (in_bf16 ? 2.0 : 4.0) * num_rows * s.heads * (s.qk_dim + s.v_dim);
  report.Add({.name = name,
              .shape = shape,
              .seconds = seconds,
              .flops = flops,
              .bytes = bytes,
              .limit = Roofline(bytes, machine.bandwidth(), flops, machine.bf16)});
}

// SelectKeys with the indexer of DeepSeek-V3.2.
void SelectCase(int batch, int rows, int keys, const GpuMachine& machine, Report& report) {
  constexpr int kHeads = 64, kWidth = 128, kTopK = 2048;
  const std::string name = "select keys";
  const std::string shape =
      Text("deepseek-v3.2 %d x %d rows %d keys, top %d", batch, rows, keys, kTopK);
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);
  const Sequences sequences(batch, rows, keys, kPageSize);
  const int64_t slots = sequences.slots(), num_rows = int64_t{batch} * rows;
  const int layers =
      static_cast<int>(std::clamp<int64_t>((200 << 20) / (slots * kWidth * 2), 2, 48));
  const DeviceArray<__nv_bfloat16> cache(layers * slots * kWidth);
  const DeviceArray<float> q(num_rows * kHeads * kWidth), weights(num_rows * kHeads);
  const DeviceArray<int32_t> selected(static_cast<size_t>(num_rows * kTopK));
  const DeviceArray<std::byte> scratch(cuda::kAttentionScratchBytes);
  FillNormal<<<1024, 256>>>(cache.data, layers * slots * kWidth, 1);
  FillNormal<<<1024, 256>>>(q.data, num_rows * kHeads * kWidth, uint64_t{1} << 40);
  FillNormal<<<1024, 256>>>(weights.data, num_rows * kHeads, uint64_t{1} << 41);
  const double seconds = GraphSeconds(layers, [&](int layer, cudaStream_t stream) {
    cuda::SelectKeys({.q = q.data,
                      .ldq = kHeads * kWidth,
                      .weights = weights.data,
                      .cache = cache.data + layer * slots * kWidth,
                      .kv_dtype = DType::kBF16,
                      .heads = kHeads,
                      .head_dim = kWidth,
                      .topk = kTopK,
                      .selected = selected.data},
                     sequences.table(), /*exact=*/false, stream,
                     {scratch.data, cuda::kAttentionScratchBytes});
  });
  const double visits = double{1.0} * batch * rows * (keys - (rows - 1) / 2.0);
  const double flops = 2.0 * visits * kHeads * kWidth;
  const double bytes = 2.0 * batch * keys * kWidth +
                       4.0 * static_cast<double>(num_rows) * (kHeads * kWidth + kHeads + kTopK);
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
  const Shape next = {"qwen3-next 16/2 x 256", 16, 2, 256, 256};
  const Shape mimo = {"mimo-v2-flash 64/4 x 192, 128", 64, 4, 192, 128};
  const Shape mla = {"deepseek-v3 128 heads", 128, 1, 576, 512, true};
  const Shape mla8 = {"deepseek-v3 16 heads", 16, 1, 576, 512, true};
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
  for (const Shape& s : {next, mimo}) {
    for (const auto [batch, rows, keys] :
         {std::tuple{1, 1, 1024}, std::tuple{1, 1, 4096}, std::tuple{1, 1, 131072},
          std::tuple{32, 1, 4096}, std::tuple{256, 1, 2048}, std::tuple{1, 4096, 4096},
          std::tuple{16, 512, 512}, std::tuple{1, 2048, 32768}})
      Case(s, batch, rows, keys, false, machine, report);
  }
  for (Shape s : {qwen, oss, next, mla8}) {
    s.codes = true;
    for (const auto [batch, rows, keys] :
         {std::tuple{1, 1, 1024}, std::tuple{1, 1, 32768}, std::tuple{8, 1, 4096},
          std::tuple{32, 1, 4096}, std::tuple{128, 1, 4096}, std::tuple{256, 1, 512},
          std::tuple{256, 1, 2048}, std::tuple{16, 512, 512}, std::tuple{1, 4096, 4096},
          std::tuple{1, 8192, 8192}})
      Case(s, batch, rows, keys, false, machine, report);
  }
  // As in a pass: each call starts early.
  for (const Shape& s : {qwen, oss, mla, mla8}) {
    if (!cuda::IsHopper()) break;
    for (const int batch : {1, 32, 128, 256})
      Case(s, batch, 1, 520, false, machine, report, 16, /*chained=*/true);
    for (const int batch : {1, 4, 16})
      Case(s, batch, 512, 512, false, machine, report, 16, /*chained=*/true);
  }
  for (const auto [batch, rows, keys] :
       {std::tuple{1, 1, 8192}, std::tuple{1, 1, 65536}, std::tuple{32, 1, 8192},
        std::tuple{32, 1, 65536}, std::tuple{1, 2048, 8192}}) {
    SelectCase(batch, rows, keys, machine, report);
    for (const Shape& dense : {mla, mla8}) {
      Shape sparse = dense;
      sparse.topk = 2048;
      Case(sparse, batch, rows, keys, false, machine, report);
    }
  }
  for (const Shape& s : {qwen, mla}) {
    Case(s, 32, 1, 4096, true, machine, report);
    Case(s, 1, 256, 1024, true, machine, report);
  }
}

}  // namespace switchyard::bench
