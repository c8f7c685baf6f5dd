// The kernels of training on one GPU, with the sizes of OLMoE-1B-7B (16384 tokens of 4096-token
// sequences) and with the attention of Qwen3-30B-A3B and DeepSeek-V2-Lite. A program of its own, as
// `switchyard bench` does not measure training.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "train/cuda/adamw.h"
#include "train/cuda/attention.h"
#include "train/cuda/fp8.h"
#include "train/cuda/head_loss.h"
#include "train/cuda/products.h"
#include "train/cuda/router_products.h"
#include "train/cuda/routing.h"
#include "train/cuda/rows.h"

namespace switchyard::bench {
namespace {

using namespace train;  // NOLINT(google-build-using-namespace): gpu:: is the subject of this file

constexpr int kCalls = 8;

BF16* Rounded(const DeviceArray<__nv_bfloat16>& array) {
  return reinterpret_cast<BF16*>(array.data);
}
void Fill(const DeviceArray<__nv_bfloat16>& array, int64_t count, uint64_t seed) {
  FillUniform<<<1024, 256>>>(array.data, static_cast<size_t>(count), seed);
}

void Measure(const std::string& name, const std::string& shape, double flops, double bytes,
             const GpuMachine& machine, Report& report,
             const std::function<void(int, cudaStream_t)>& call, bool fp8 = false) {
  const double seconds = GraphSeconds(kCalls, call);
  report.Add({.name = name,
              .shape = shape,
              .seconds = seconds,
              .flops = flops,
              .bytes = bytes,
              .limit = Roofline(bytes, machine.read, flops, fp8 ? machine.fp8 : machine.bf16)});
}

// The row ranges of groups that have between 0.7 and 1.3 times rows / groups rows.
std::vector<int32_t> RaggedBegins(int groups, int64_t rows) {
  std::mt19937 random(static_cast<unsigned>(groups));
  std::vector<int32_t> begins = {0};
  double left = static_cast<double>(rows);
  for (int g = 0; g < groups; ++g) {
    const double share =
        g + 1 == groups ? left : left / (groups - g) * (0.7 + 6e-4 * (random() % 1000));
    left -= share;
    begins.push_back(g + 1 == groups ? static_cast<int32_t>(rows)
                                     : begins.back() + static_cast<int32_t>(share));
  }
  return begins;
}

// The three products of a layer of ragged groups.
void Products(const char* what, int groups, int64_t rows, int64_t n, int64_t k,
              const GpuMachine& machine, Report& report) {
  const std::string shape =
      Text("%s %d groups %lld x %lld x %lld", what, groups, static_cast<long long>(rows),
           static_cast<long long>(n), static_cast<long long>(k));
  const char* const names[] = {"forward", "input-gradient", "weight-gradient"};
  bool any = false;
  for (const char* name : names) any = any || report.Selects(name, shape);
  if (!any) return;
  const DeviceArray<int32_t> device_begins(RaggedBegins(groups, rows));
  const DeviceArray<__nv_bfloat16> x(rows * k), y(rows * n), w(groups * n * k);
  const DeviceArray<float> dw(groups * n * k);
  Fill(x, rows * k, 1);
  Fill(y, rows * n, uint64_t{1} << 40);
  Fill(w, groups * n * k, uint64_t{1} << 41);
  cuda::Check(cudaMemset(dw.data, 0, groups * n * k * sizeof(float)), "gradients");
  cuda::Check(cudaDeviceSynchronize(), "made-up operands");
  const gpu::ProductShape p = {
      .rows = rows, .n = n, .k = k, .groups = groups, .begins = device_begins.data};
  const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k);
  const double moved = 2.0 * static_cast<double>(rows * (n + k) + groups * n * k);
  const auto measure = [&](int i, double bytes, const std::function<void(cudaStream_t)>& call) {
    if (!report.Selects(names[i], shape)) return;
    report.Start(names[i], shape);
    Measure(names[i], shape, flops, bytes, machine, report,
            [&](int, cudaStream_t stream) { call(stream); });
  };
  measure(0, moved, [&](cudaStream_t stream) {
    gpu::LinearForward(p, Rounded(x), Rounded(w), Rounded(y), false, stream);
  });
  measure(1, moved, [&](cudaStream_t stream) {
    gpu::LinearInputGradient(p, Rounded(y), Rounded(w), Rounded(x), false, stream);
  });
  // The float32 gradients are read and written.
  measure(2, moved + 6.0 * static_cast<double>(groups * n * k), [&](cudaStream_t stream) {
    gpu::LinearWeightGradient(p, Rounded(y), Rounded(x), dw.data, true, stream);
  });
}

// Codes and scales of an operand of an FP8 product.
struct Codes {
  Codes(int64_t count, int64_t scale_count) : codes(count), scales(scale_count) {}
  gpu::Fp8Array view() const { return {codes.data, scales.data}; }
  const DeviceArray<uint8_t> codes;
  const DeviceArray<float> scales;
};

// The FP8 products of a layer of ragged groups, and the quantization of their operands.
void Fp8Products(const char* what, int groups, int64_t rows, int64_t n, int64_t k,
                 const GpuMachine& machine, Report& report) {
  const std::string shape =
      Text("fp8 %s %d groups %lld x %lld x %lld", what, groups, static_cast<long long>(rows),
           static_cast<long long>(n), static_cast<long long>(k));
  const char* const names[] = {"quantize-weights", "quantize-rows",  "quantize-columns",
                               "forward",          "input-gradient", "weight-gradient"};
  bool any = false;
  for (const char* name : names) any = any || report.Selects(name, shape);
  if (!any) return;
  const DeviceArray<int32_t> device_begins(RaggedBegins(groups, rows));
  const int64_t weights = groups * n * k, padded = gpu::Fp8PaddedRows(rows, groups);
  constexpr int64_t kBlock = gpu::kScaleBlock;
  const DeviceArray<__nv_bfloat16> x(rows * k), y(rows * n), w(weights);
  const DeviceArray<float> dw(weights);
  const Codes weight(weights, weights / (kBlock * kBlock)),
      transposed(weights, weights / (kBlock * kBlock)),
      x_rows(rows * k, k / kBlock * gpu::Fp8RowStride(rows)),
      y_rows(rows * n, n / kBlock * gpu::Fp8RowStride(rows)),
      x_columns(padded * k, padded * k / kBlock), y_columns(padded * n, padded * n / kBlock);
  Fill(x, rows * k, 1);
  Fill(y, rows * n, uint64_t{1} << 40);
  Fill(w, weights, uint64_t{1} << 41);
  cuda::Check(cudaMemset(dw.data, 0, weights * sizeof(float)), "gradients");
  const gpu::ProductShape p = {
      .rows = rows, .n = n, .k = k, .groups = groups, .begins = device_begins.data};
  gpu::ProductShape back = p;
  std::swap(back.n, back.k);
  const auto quantize_weights = [&](cudaStream_t stream) {
    gpu::QuantizeBlocks(p, Rounded(w), weight.view(), transposed.view(), stream);
  };
  const auto quantize_rows = [&](cudaStream_t stream) {
    gpu::QuantizeRows({.rows = rows, .width = k}, Rounded(x), x_rows.view(), stream);
  };
  const auto quantize_columns = [&](cudaStream_t stream) {
    gpu::QuantizeColumns(p, Rounded(x), k, x_columns.view(), stream);
  };
  quantize_weights(nullptr);
  quantize_rows(nullptr);
  quantize_columns(nullptr);
  gpu::QuantizeRows({.rows = rows, .width = n}, Rounded(y), y_rows.view(), nullptr);
  gpu::QuantizeColumns(p, Rounded(y), n, y_columns.view(), nullptr);
  cuda::Check(cudaDeviceSynchronize(), "made-up operands");
  const double flops = 2.0 * static_cast<double>(rows * n) * static_cast<double>(k);
  const auto of_weights = static_cast<double>(weights), of_x = static_cast<double>(rows * k),
             of_y = static_cast<double>(rows * n);
  const auto measure = [&](int i, double operations, double bytes,
                           const std::function<void(cudaStream_t)>& call) {
    if (!report.Selects(names[i], shape)) return;
    report.Start(names[i], shape);
    Measure(
        names[i], shape, operations, bytes, machine, report,
        [&](int, cudaStream_t stream) { call(stream); }, /*fp8=*/true);
  };
  measure(0, 0, 4 * of_weights, quantize_weights);
  measure(1, 0, 3 * of_x, quantize_rows);
  measure(2, 0, 3 * of_x, quantize_columns);
  measure(3, flops, of_x + of_weights + 2 * of_y, [&](cudaStream_t stream) {
    gpu::Fp8Product(p, x_rows.view(), weight.view(), Rounded(y), false, stream);
  });
  measure(4, flops, of_y + of_weights + 2 * of_x, [&](cudaStream_t stream) {
    gpu::Fp8Product(back, y_rows.view(), transposed.view(), Rounded(x), false, stream);
  });
  // The float32 gradients are read and written.
  measure(5, flops, of_x + of_y + 8 * of_weights, [&](cudaStream_t stream) {
    gpu::Fp8WeightGradient(p, y_columns.view(), x_columns.view(), dw.data, stream);
  });
}

void Attention(const char* what, int sequences, int64_t length, int64_t heads, int64_t kv_heads,
               int64_t qk_dim, int64_t v_dim, const GpuMachine& machine, Report& report,
               gpu::AttentionTiles tiles = gpu::AttentionTiles::kHopper) {
  const std::string shape =
      Text("%s %d x %lld rows", what, sequences, static_cast<long long>(length));
  const char *const forward = "attention", *const backward = "attention-gradient";
  if (!report.Selects(forward, shape) && !report.Selects(backward, shape)) return;
  const int64_t rows = sequences * length;
  std::vector<int32_t> begins;
  for (int i = 0; i <= sequences; ++i) begins.push_back(static_cast<int32_t>(i * length));
  const DeviceArray<int32_t> device_begins(begins);
  const int64_t q_width = heads * qk_dim, k_width = kv_heads * qk_dim, v_width = kv_heads * v_dim,
                out_width = heads * v_dim;
  const DeviceArray<__nv_bfloat16> q(rows * q_width), k(rows * k_width), v(rows * v_width),
      out(rows * out_width), dout(rows * out_width), dq(rows * q_width), dk(rows * k_width),
      dv(rows * v_width);
  const DeviceArray<float> log_sums(rows * heads), along(rows * heads);
  Fill(q, rows * q_width, 1);
  Fill(k, rows * k_width, uint64_t{1} << 40);
  Fill(v, rows * v_width, uint64_t{1} << 41);
  Fill(dout, rows * out_width, uint64_t{1} << 42);
  cuda::Check(cudaDeviceSynchronize(), "made-up operands");
  const gpu::AttentionShape p = {.heads = heads,
                                 .kv_heads = kv_heads,
                                 .qk_dim = qk_dim,
                                 .v_dim = v_dim,
                                 .scale = 0.1f,
                                 .rows = rows,
                                 .sequences = sequences,
                                 .begins = device_begins.data,
                                 .longest = length,
                                 .tiles = tiles};
  const auto view = [](const DeviceArray<__nv_bfloat16>& array, int64_t width, int64_t dim) {
    return gpu::MutableHeadArray{Rounded(array), width, dim};
  };
  const auto run = [&](cudaStream_t stream) {
    gpu::Attention(p, view(q, q_width, qk_dim), view(k, k_width, qk_dim), view(v, v_width, v_dim),
                   view(out, out_width, v_dim), log_sums.data, stream);
  };
  // A row sees half of the rows on average.
  const double pairs = 0.5 * static_cast<double>(rows * length) * static_cast<double>(heads);
  const double bytes = 2.0 * static_cast<double>(rows * (q_width + k_width + v_width + out_width));
  run(nullptr);
  if (report.Selects(forward, shape)) {
    report.Start(forward, shape);
    Measure(forward, shape, 2.0 * pairs * static_cast<double>(qk_dim + v_dim), bytes, machine,
            report, [&](int, cudaStream_t stream) { run(stream); });
  }
  if (!report.Selects(backward, shape)) return;
  report.Start(backward, shape);
  // The five products that the gradients need; the kernels compute two of them twice.
  const double flops = 2.0 * pairs * static_cast<double>(3 * qk_dim + 2 * v_dim);
  Measure(backward, shape, flops, 2.5 * bytes, machine, report, [&](int, cudaStream_t stream) {
    gpu::AttentionGradient({.shape = p,
                            .q = view(q, q_width, qk_dim),
                            .k = view(k, k_width, qk_dim),
                            .v = view(v, v_width, v_dim),
                            .out = view(out, out_width, v_dim),
                            .dout = view(dout, out_width, v_dim),
                            .log_sums = log_sums.data,
                            .along = along.data,
                            .dq = view(dq, q_width, qk_dim),
                            .dk = view(dk, k_width, qk_dim),
                            .dv = view(dv, v_width, v_dim)},
                           stream);
  });
}

void Update(const GpuMachine& machine, Report& report) {
  constexpr int64_t kCount = 1 << 26;
  const std::string shape = Text("%lld parameters", static_cast<long long>(kCount));
  const DeviceArray<float> value(kCount), gradient(kCount), first(kCount), second(kCount);
  const DeviceArray<__nv_bfloat16> rounded(kCount);
  const DeviceArray<double> sums(kCount / 16384);
  for (const auto* array : {&value, &gradient, &first, &second})
    cuda::Check(cudaMemset(array->data, 0, kCount * sizeof(float)), "parameters");
  if (report.Selects("adamw", shape)) {
    report.Start("adamw", shape);
    const gpu::AdamWParams p = {
        .count = kCount,
        .value = value.data,
        .gradient = gradient.data,
        .first = first.data,
        .second = second.data,
        .rounded = Rounded(rounded),
        .factors = gpu::MakeAdamWFactors(1e-3, 0.1, 0.9, 0.95, 1e-8, 1, 1.0)};
    // Four arrays are read and written, and the copy is written.
    Measure("adamw", shape, 0, 34.0 * kCount, machine, report,
            [&](int, cudaStream_t stream) { gpu::AdamWStep(p, stream); });
  }
  if (!report.Selects("sum-of-squares", shape)) return;
  report.Start("sum-of-squares", shape);
  Measure("sum-of-squares", shape, 0, 4.0 * kCount, machine, report, [&](int, cudaStream_t stream) {
    gpu::BlockSumsOfSquares(gradient.data, kCount, sums.data, stream);
  });
}

void Norm(const GpuMachine& machine, Report& report) {
  constexpr int64_t kRows = 16384, kWidth = 2048, kCount = kRows * kWidth;
  const std::string shape = "16384 x 2048";
  const DeviceArray<__nv_bfloat16> x(kCount), y(kCount), dx(kCount);
  const DeviceArray<float> weight(kWidth), dweight(kWidth),
      scratch(static_cast<size_t>(gpu::RmsNormScratch(kRows, kWidth)));
  Fill(x, kCount, 1);
  cuda::Check(cudaMemset(weight.data, 0, kWidth * sizeof(float)), "weights");
  if (report.Selects("rms-norm", shape)) {
    report.Start("rms-norm", shape);
    gpu::RmsNormParams p = {.m = kRows, .n = kWidth, .eps = 1e-6f, .x = Rounded(x)};
    p.weight = weight.data;
    p.y = Rounded(y);
    Measure("rms-norm", shape, 0, 4.0 * kCount, machine, report,
            [&](int, cudaStream_t stream) { gpu::RmsNorm(p, stream); });
  }
  if (!report.Selects("rms-norm-gradient", shape)) return;
  report.Start("rms-norm-gradient", shape);
  const gpu::RmsNormGradientParams p = {.m = kRows,
                                        .n = kWidth,
                                        .eps = 1e-6f,
                                        .x = Rounded(x),
                                        .weight = weight.data,
                                        .dy = Rounded(y),
                                        .dx = Rounded(dx),
                                        .dweight = dweight.data,
                                        .scratch = scratch.data};
  Measure("rms-norm-gradient", shape, 0, 6.0 * kCount, machine, report,
          [&](int, cudaStream_t stream) { gpu::RmsNormGradient(p, stream); });
}

// The products of a router and the rows of its experts: top 8 of 64.
void Routing(const GpuMachine& machine, Report& report) {
  constexpr int64_t kTokens = 16384, kWidth = 2048, kExperts = 64, kTopK = 8;
  constexpr int64_t kSlots = kTokens * kTopK, kCount = kTokens * kWidth;
  const std::string shape = "16384 tokens, 8 of 64 experts, 2048";
  const char* const names[] = {"router-logits",      "router-gradients",    "order-slots",
                               "gather-expert-rows", "combine-expert-rows", "combine-gradient"};
  bool any = false;
  for (const char* name : names) any = any || report.Selects(name, shape);
  if (!any) return;
  std::mt19937 random(1);
  std::vector<int32_t> choice(kSlots);
  for (int64_t slot = 0; slot < kSlots; ++slot)
    choice[slot] = static_cast<int32_t>((random() % kTopK + slot % kTopK * kTopK) % kExperts);
  const DeviceArray<int32_t> ids(choice), position(kSlots), begins(kExperts + 1),
      scratch(static_cast<size_t>(gpu::SlotOrderScratch(kSlots, kExperts)));
  const DeviceArray<__nv_bfloat16> x(kCount), rows(kSlots * kWidth);
  const DeviceArray<float> w(kExperts * kWidth), dw(kExperts * kWidth), logits(kTokens * kExperts),
      weights(kSlots), dweights(kSlots), y(kCount);
  const DeviceArray<std::byte> parts(
      static_cast<size_t>(gpu::RouterProductScratch(kTokens, kExperts, kWidth)));
  Fill(x, kCount, 1);
  Fill(rows, kSlots * kWidth, uint64_t{1} << 40);
  for (const auto& [data, count] : {std::pair{w.data, kExperts * kWidth},
                                    {dw.data, kExperts * kWidth},
                                    {logits.data, kTokens * kExperts},
                                    {weights.data, kSlots},
                                    {y.data, kCount}})
    cuda::Check(cudaMemset(data, 0, count * sizeof(float)), "operands");
  const gpu::RouterProduct product = {.m = kTokens,
                                      .n = kExperts,
                                      .k = kWidth,
                                      .x = Rounded(x),
                                      .w = w.data,
                                      .scratch = parts.data};
  const gpu::SlotOrder order = {position.data, begins.data};
  const gpu::ExpertRowsShape p = {
      .m = kTokens, .hidden = kWidth, .k = kTopK, .position = position.data};
  gpu::OrderSlots(ids.data, kSlots, kExperts, order, scratch.data, nullptr);
  const auto measure = [&](int i, double flops, double bytes,
                           const std::function<void(cudaStream_t)>& call) {
    if (!report.Selects(names[i], shape)) return;
    report.Start(names[i], shape);
    Measure(names[i], shape, flops, bytes, machine, report,
            [&](int, cudaStream_t stream) { call(stream); });
  };
  constexpr double kFlops = 2.0 * kTokens * kExperts * kWidth;
  measure(0, kFlops, 2.0 * kCount,
          [&](cudaStream_t stream) { gpu::RouterLogits(product, logits.data, stream); });
  measure(1, 2 * kFlops, 10.0 * kCount, [&](cudaStream_t stream) {
    gpu::RouterProductGradients(product, logits.data, y.data, dw.data, stream);
  });
  measure(2, 0, 12.0 * kSlots, [&](cudaStream_t stream) {
    gpu::OrderSlots(ids.data, kSlots, kExperts, order, scratch.data, stream);
  });
  measure(3, 0, 2.0 * kCount + 2.0 * kSlots * kWidth, [&](cudaStream_t stream) {
    gpu::GatherExpertRows(p, Rounded(x), Rounded(rows), stream);
  });
  measure(4, 0, 8.0 * kCount + 2.0 * kSlots * kWidth, [&](cudaStream_t stream) {
    gpu::CombineExpertRows(p, Rounded(rows), weights.data, y.data, y.data, stream);
  });
  measure(5, 0, 4.0 * kCount + 4.0 * kSlots * kWidth, [&](cudaStream_t stream) {
    gpu::CombineExpertRowsGradient(p, y.data, Rounded(rows), weights.data, Rounded(rows),
                                   dweights.data, stream);
  });
}

void CrossEntropy(const GpuMachine& machine, Report& report) {
  constexpr int64_t kRows = 4096, kVocab = 50304;
  const std::string shape = "4096 x 50304";
  if (!report.Selects("cross-entropy", shape)) return;
  report.Start("cross-entropy", shape);
  const DeviceArray<float> logits(kRows * kVocab), losses(kRows);
  const DeviceArray<__nv_bfloat16> dlogits(kRows * kVocab);
  const DeviceArray<int32_t> targets(std::vector<int32_t>(kRows, 7));
  const DeviceArray<gpu::LogitStatistic> statistics(kRows);
  cuda::Check(cudaMemset(logits.data, 0, kRows * kVocab * sizeof(float)), "logits");
  const gpu::LogitShape p = {.rows = kRows, .vocab = kVocab};
  // Logits are read twice, and their gradients are written.
  Measure("cross-entropy", shape, 0, 10.0 * kRows * kVocab, machine, report,
          [&](int, cudaStream_t stream) {
            gpu::LogitStatistics(p, logits.data, targets.data, statistics.data, stream);
            gpu::LogitGradient(p, logits.data, targets.data, statistics.data, 1, 1.0f, losses.data,
                               Rounded(dlogits), stream);
          });
}

}  // namespace

void TrainKernelsBench(const Options&, const GpuMachine& machine, Report& report) {
  Products("gate and up", 64, 131072, 2048, 2048, machine, report);
  Products("down", 64, 131072, 2048, 1024, machine, report);
  Products("down of few rows", 64, 8192, 2048, 1024, machine, report);
  Products("query", 1, 16384, 2048, 2048, machine, report);
  Products("head", 1, 4096, 50304, 2048, machine, report);
  Fp8Products("gate and up", 64, 131072, 2048, 2048, machine, report);
  Fp8Products("down", 64, 131072, 2048, 1024, machine, report);
  Fp8Products("query", 1, 16384, 2048, 2048, machine, report);
  Attention("OLMoE", 4, 4096, 16, 16, 128, 128, machine, report);
  Attention("OLMoE with older tiles", 4, 4096, 16, 16, 128, 128, machine, report,
            gpu::AttentionTiles::kOneWarpgroup);
  Attention("Qwen3", 4, 4096, 32, 4, 128, 128, machine, report);
  Attention("heads of 64", 4, 4096, 32, 8, 64, 64, machine, report);
  Attention("DeepSeek-V2-Lite", 4, 4096, 16, 16, 192, 128, machine, report);
  Update(machine, report);
  Norm(machine, report);
  Routing(machine, report);
  CrossEntropy(machine, report);
}

}  // namespace switchyard::bench
