// Times of a GPU's ops, called through kernels::Device. The reported bytes and FLOPs are the
// minimum that an op needs.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_benches.h"
#include "bench/timing.h"
#include "core/cuda/runtime.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/device.h"
#include "kernels/fused_ops.h"
#include "kernels/recurrent.h"

namespace switchyard::bench {
namespace {

using kernels::Device;

constexpr int64_t kMaxTokens = 4096;
constexpr int kRounds = 20;

struct Bench {
  Device& device;
  const GpuMachine& machine;
  Report& report;
  uint64_t key = 0;  // key of the last graph
  std::vector<std::shared_ptr<void>> memory;

  float* Floats(int64_t count) {
    memory.push_back(device.Allocate(count * sizeof(float)));
    return static_cast<float*>(memory.back().get());
  }

  // Median seconds of one call of `op`. A graph of eight calls is captured and replayed, so that
  // launch overhead is not measured.
  double Time(const std::function<void(int)>& op) {
    constexpr int kRepeats = 8;
    const cudaStream_t stream = cuda::CudaDevice::From(device).stream();
    const auto pass = [&] {
      for (int i = 0; i < kRepeats; ++i) op(i);
    };
    ++key;
    for (int i = 0; i < 4; ++i) device.Run(key, pass);
    std::vector<double> times;
    const cuda::Event begin, end;
    for (int i = 0; i < kRounds; ++i) {
      begin.Record(stream);
      device.Run(key, pass);
      end.Record(stream);
      end.Wait();
      times.push_back(end.MillisecondsSince(begin) * 1e-3 / kRepeats);
    }
    return Median(std::move(times));
  }

  // Times and reports `op`, unless it is filtered out.
  void Run(const std::string& name, const std::string& shape, double bytes, double flops,
           double peak, const std::function<void(int)>& op) {
    if (!report.Selects(name, shape)) return;
    report.Start(name, shape);
    report.Add({.name = name,
                .shape = shape,
                .seconds = Time(op),
                .flops = flops,
                .bytes = bytes,
                .limit = Roofline(bytes, machine.bandwidth(), flops, peak)});
  }
};

// Weights are zeros, because the time does not depend on their values. There are several copies, so
// that weights do not stay in the L2 cache.
std::vector<WeightView> Weights(Bench& bench, WeightFormat format, int64_t n, int64_t k) {
  const int64_t element = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBF16 ? 2 : 1;
  const int64_t bytes = n * k * element, scale_bytes = CeilDiv(n, 128) * CeilDiv(k, 128) * 4;
  std::vector<WeightView> weights;
  const int64_t copies = std::clamp<int64_t>((int64_t{160} << 20) / bytes, 1, 8);
  for (int64_t i = 0; i < copies; ++i) {
    WeightView w;
    w.format = format;
    w.owner = bench.device.Allocate(bytes);
    bench.memory.push_back(bench.device.Allocate(scale_bytes));
    w.data = w.owner.get();
    w.scales = bench.memory.back().get();
    w.n = n;
    w.k = w.stored_k = k;
    weights.push_back(w);
  }
  return weights;
}

void BenchLinear(Bench& bench, WeightFormat format, int64_t n, int64_t k) {
  const std::vector<WeightView> weights = Weights(bench, format, n, k);
  const float* x = bench.Floats(kMaxTokens * k);
  float* y = bench.Floats(kMaxTokens * n);
  const double element = format == WeightFormat::kF32 ? 4 : format == WeightFormat::kBF16 ? 2 : 1;
  const double ceiling = format == WeightFormat::kF32    ? bench.machine.f32
                         : format == WeightFormat::kBF16 ? bench.machine.bf16
                                                         : bench.machine.fp8;
  for (const int64_t m : {1, 8, 32, 128, 4096}) {
    bench.Run("linear", fmt::format("{} {} x {} x {}", Name(format), m, n, k),
              element * static_cast<double>(n * k) + 4.0 * static_cast<double>(m * (n + k)),
              2.0 * static_cast<double>(m * n * k), ceiling, [&](int i) {
                bench.device.Linear(
                    {.x = x, .ldx = k, .w = weights[i % weights.size()], .y = y, .ldy = n, .m = m});
              });
  }
}

// Query, key and value projections of Qwen3-30B-A3B, measured as one group and as three consecutive
// ops.
void BenchGroup(Bench& bench) {
  const int64_t hidden = 2048, widths[] = {4096, 512, 512};
  std::vector<kernels::LinearParams> parts;
  const float* x = bench.Floats(128 * hidden);
  for (const int64_t n : widths) {
    parts.push_back({.x = x,
                     .ldx = hidden,
                     .w = Weights(bench, WeightFormat::kBF16, n, hidden)[0],
                     .y = bench.Floats(128 * n),
                     .ldy = n});
  }
  for (const int64_t m : {1, 32, 128}) {
    for (kernels::LinearParams& p : parts) p.m = m;
    const double n = 5120, k = hidden, rows = static_cast<double>(m);
    for (const bool grouped : {false, true}) {
      bench.Run("q-k-v", fmt::format("bfloat16 {} tokens {}", m, grouped ? "at once" : "in turn"),
                2 * n * k + 4 * rows * (n + k), 2 * rows * n * k, bench.machine.bf16, [&](int) {
                  if (grouped) return bench.device.LinearGroup(parts);
                  for (const kernels::LinearParams& p : parts) bench.device.Linear(p);
                });
    }
  }
}

// MLA of DeepSeek-V3 with 16 of its heads.
void BenchHeads(Bench& bench) {
  const int64_t heads = 16, nope = 128, lora = 512;
  const std::vector<WeightView> all = Weights(bench, WeightFormat::kBF16, heads * nope, lora);
  std::vector<WeightView> weights;
  for (int64_t h = 0; h < heads; ++h) weights.push_back(all[0].Rows(h * nope, (h + 1) * nope));
  float* x = bench.Floats(kMaxTokens * heads * lora);
  float* y = bench.Floats(kMaxTokens * heads * lora);
  for (const bool transposed : {false, true}) {
    const int64_t in = transposed ? lora : nope, out = transposed ? nope : lora;
    for (const int64_t m : {1, 32, 4096}) {
      bench.Run("head-linear", fmt::format("bfloat16 16 heads {} x {} x {}", m, out, in),
                static_cast<double>(heads) * (2.0 * static_cast<double>(nope * lora) +
                                              4.0 * static_cast<double>(m * (in + out))),
                2.0 * static_cast<double>(m * heads * nope * lora), bench.machine.bf16, [&](int) {
                  bench.device.HeadLinear({.x = x,
                                           .ldx = heads * in,
                                           .head_stride_x = in,
                                           .w = weights,
                                           .transposed = transposed,
                                           .y = y,
                                           .ldy = heads * out,
                                           .head_stride_y = out,
                                           .m = m});
                });
    }
  }
}

void BenchRows(Bench& bench) {
  const int64_t n = 7168;
  float* x = bench.Floats(kMaxTokens * n);
  float* y = bench.Floats(kMaxTokens * n);
  const float* weight = bench.Floats(n);
  const auto* ints = reinterpret_cast<const int32_t*>(bench.Floats(kMaxTokens));
  const float* table = bench.Floats(64);
  for (const int64_t m : {1, 32, 4096}) {
    const auto count = static_cast<double>(m * n);
    const auto line = [&](const char* what, double bytes, const std::function<void(int)>& op) {
      bench.Run(what, fmt::format("{} x {}", m, n), bytes, 0, 0, op);
    };
    line("rms-norm", 8 * count, [&](int) {
      bench.device.RmsNorm({.x = x, .ldx = n, .weight = weight, .y = y, .ldy = n, .m = m, .n = n});
    });
    line("head-rms-norm", 8 * count, [&](int) {
      bench.device.RmsNorm(
          {.x = x, .ldx = 128, .weight = weight, .y = x, .ldy = 128, .m = m * n / 128, .n = 128});
    });
    line("add", 12 * count, [&](int) { bench.device.AddInPlace(y, x, m * n); });
    line("copy-rows", 8 * count,
         [&](int) { bench.device.CopyRows({.x = x, .ldx = n, .y = y, .ldy = n, .m = m, .n = n}); });
    line("store-kv", 6 * count, [&](int) {
      bench.device.StoreKv(
          {.x = x, .ldx = n, .m = m, .n = n, .slots = ints, .cache = y, .dtype = DType::kBF16});
    });
    line("rope", 8 * count, [&](int) {
      bench.device.Rope({.x = x,
                         .ldx = n,
                         .m = m,
                         .heads = n / 128,
                         .head_dim = 128,
                         .rotary_dim = 128,
                         .positions = ints,
                         .cos_sin = table});
    });
  }
}

// A layer of Qwen3-30B-A3B from the residual stream to attention: once with the ops that every
// device has, once with fused ops.
void BenchFront(Bench& bench) {
  constexpr int64_t kHidden = 2048, kHeads = 32, kKvHeads = 4, kDim = 128, kMost = 512;
  constexpr int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim, kAll = kQ + 2 * kKv;
  const std::vector<WeightView> copies = Weights(bench, WeightFormat::kBF16, kAll, kHidden);
  float* residual = bench.Floats(kMost * kHidden);
  float* normed = bench.Floats(kMost * kHidden);
  float* q = bench.Floats(kMost * kAll);
  float *k = q + kMost * kQ, *v = k + kMost * kKv;
  const float* weight = bench.Floats(kHidden);
  const float* table = bench.Floats(kDim);
  const auto* zeros = reinterpret_cast<const int32_t*>(bench.Floats(kMost));
  float* cache = bench.Floats(kKv);
  kernels::FusedOps* fused = bench.device.fused();
  const auto apart = [&](int64_t m, const WeightView& all) {
    bench.device.AddInPlace(residual, normed, m * kHidden);
    bench.device.RmsNorm({.x = residual,
                          .ldx = kHidden,
                          .weight = weight,
                          .y = normed,
                          .ldy = kHidden,
                          .m = m,
                          .n = kHidden});
    const auto part = [&](int64_t begin, int64_t end, float* y) {
      return kernels::LinearParams{.x = normed,
                                   .ldx = kHidden,
                                   .w = all.Rows(begin, end),
                                   .y = y,
                                   .ldy = end - begin,
                                   .m = m};
    };
    const kernels::LinearParams parts[] = {part(0, kQ, q), part(kQ, kQ + kKv, k),
                                           part(kQ + kKv, kAll, v)};
    bench.device.LinearGroup(parts);
    for (auto [x, heads] : {std::pair{q, kHeads}, std::pair{k, kKvHeads}}) {
      bench.device.RmsNorm(
          {.x = x, .ldx = kDim, .weight = weight, .y = x, .ldy = kDim, .m = m * heads, .n = kDim});
      bench.device.Rope({.x = x,
                         .ldx = heads * kDim,
                         .m = m,
                         .heads = heads,
                         .head_dim = kDim,
                         .rotary_dim = kDim,
                         .positions = zeros,
                         .cos_sin = table});
    }
    for (float* x : {k, v})
      bench.device.StoreKv({.x = x,
                            .ldx = kKv,
                            .m = m,
                            .n = kKv,
                            .slots = zeros,
                            .cache = cache,
                            .dtype = DType::kBF16});
  };
  const auto at_once = [&](int64_t m, const WeightView& all) {
    const kernels::RoundedRows rows = {.form = kernels::RoundedForm::kBFloat16, .data = normed};
    fused->AddNorm(
        {.x = residual, .add = residual, .weight = weight, .rounded = rows, .m = m, .n = kHidden});
    fused->LinearOfRoundedRows({.w = all, .y = q, .ldy = kAll, .m = m}, rows);
    fused->NormRopeStoreKv({.qkv = q,
                            .q_norm = weight,
                            .k_norm = weight,
                            .m = m,
                            .heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = kDim,
                            .rotary_dim = kDim,
                            .positions = zeros,
                            .cos_sin = table,
                            .slots = zeros,
                            .k_cache = cache,
                            .v_cache = cache,
                            .kv_dtype = DType::kBF16});
  };
  for (const int64_t m : {1, 32, 128, 256, 512}) {
    const auto rows = static_cast<double>(m), products = rows * kAll * kHidden;
    bench.Run("to-attention", fmt::format("{} tokens {}", m, fused ? "fused" : "apart"),
              2.0 * kAll * kHidden + 4 * rows * (3 * kHidden + kAll), 2 * products,
              bench.machine.bf16, [&](int i) {
                const WeightView& all = copies[i % copies.size()];
                fused ? at_once(m, all) : apart(m, all);
              });
  }
}

// A small op that starts early, after another one: the addition of a branch and the norm.
void BenchAddNorm(Bench& bench) {
  constexpr int64_t kHidden = 2048;
  float* residual = bench.Floats(kMaxTokens * kHidden);
  float* branch = bench.Floats(kMaxTokens * kHidden);
  float* normed = bench.Floats(kMaxTokens * kHidden);
  const float* weight = bench.Floats(kHidden);
  for (const int64_t m : {1, 8, 32, 128, 256, 512, 1024, 4096})
    // Reads and writes the residual, and reads the branch; the norm is in bfloat16.
    bench.Run("add-norm", fmt::format("{} x {}", m, kHidden),
              14.0 * static_cast<double>(m * kHidden), 0, 0, [&](int) {
                bench.device.fused()->AddNorm(
                    {.x = residual,
                     .add = branch,
                     .weight = weight,
                     .rounded = {.form = kernels::RoundedForm::kBFloat16, .data = normed},
                     .m = m,
                     .n = kHidden});
              });
}

// A published model's recurrent layers.
struct RecurrentShape {
  const char* name;
  kernels::StateRule rule;
  int64_t key_heads, value_heads, value_dim;
};

// The convolution and the states of such a layer, for decode batches and for prompts, whose rows
// are computed one by one and, with kDelta, in chunks.
void BenchRecurrent(Bench& bench, const RecurrentShape& of) {
  constexpr int64_t kDim = 128, kWidth = 4, kSlots = 256;  // kDim: of keys
  const int64_t heads = of.value_heads, group = heads / of.key_heads;
  const int64_t values = heads * of.value_dim, mixed_width = 2 * of.key_heads * kDim + values;
  const int64_t inputs = (kWidth - 1) * mixed_width, state = values * kDim;
  const int64_t decays = of.rule == kernels::StateRule::kKeyDelta ? kDim : 1;
  const bool is_delta = of.rule == kernels::StateRule::kDelta;
  float* x = bench.Floats(kMaxTokens * mixed_width);
  float* mixed = bench.Floats(kMaxTokens * mixed_width);
  float* out = bench.Floats(kMaxTokens * values);
  float* gates = bench.Floats(kMaxTokens * heads * (decays + 1));
  const float* ab = bench.Floats(kMaxTokens * heads * (decays + 1));
  const float* weight = bench.Floats(kWidth * mixed_width);
  const float* zeros = bench.Floats(heads * decays);
  float* states = bench.Floats(kSlots * (inputs + state));
  kernels::RecurrentOps& ops = *bench.device.recurrent();
  const bool chunks = is_delta && ops.ChunksRows(kDim);
  float* chunk_scratch = bench.Floats(chunks ? kMaxTokens * heads * kernels::kDeltaChunkFloats : 1);
  struct Case {
    int64_t sequences, rows;
    bool chunked = false;
  };
  for (const Case& c :
       {Case{1, 1}, {32, 1}, {128, 1}, {1, 4096}, {1, 4096, true}, {8, 512}, {8, 512, true}}) {
    if (c.chunked && !chunks) continue;
    const int64_t sequences = c.sequences, rows = c.rows;
    // Each call uses other slots, while they suffice, so that states are not in the L2 cache.
    std::vector<const kernels::StateSpan*> spans;
    for (int64_t call = 0; call < 8; ++call) {
      std::vector<kernels::StateSpan> of_call;
      for (int64_t i = 0; i < sequences; ++i) {
        const auto slot = static_cast<int32_t>((call * sequences + i) * 2 % kSlots);
        of_call.push_back({.row_begin = static_cast<int32_t>(i * rows),
                           .rows = static_cast<int32_t>(rows),
                           .from = slot,
                           .to = slot + 1,
                           .chunked = c.chunked ? static_cast<int32_t>(rows) : 0});
      }
      const size_t bytes = of_call.size() * sizeof(kernels::StateSpan);
      bench.memory.push_back(bench.device.Allocate(bytes));
      bench.device.CopyIn(bench.memory.back().get(), of_call.data(), bytes);
      spans.push_back(static_cast<const kernels::StateSpan*>(bench.memory.back().get()));
    }
    const int64_t m = sequences * rows;
    const std::string shape = fmt::format("{} x {} rows", sequences, rows);
    const auto count = static_cast<double>(m), states_read = static_cast<double>(sequences);
    const auto widths = static_cast<double>(mixed_width + values);
    if (!c.chunked)
      bench.Run("short-conv", fmt::format("{} {}", of.name, shape),
                8.0 * static_cast<double>(mixed_width) * count +
                    8.0 * static_cast<double>(inputs) * states_read,
                0, 0, [&](int i) {
                  ops.ShortConv({.x = x,
                                 .ldx = mixed_width,
                                 .channels = mixed_width,
                                 .width = kWidth,
                                 .weight = weight,
                                 .states = states,
                                 .state_stride = inputs + state,
                                 .sequences = spans[i % spans.size()],
                                 .num_sequences = sequences,
                                 .m = m,
                                 .y = mixed,
                                 .ldy = mixed_width});
                });
    // Operations for an element of the state: decay, update and output, and the prediction of the
    // delta rules.
    const double operations = of.rule == kernels::StateRule::kMamba2 ? 5 : is_delta ? 6 : 7;
    bench.Run(of.name, shape + (c.chunked ? " in chunks" : ""),
              4 * widths * count + 8.0 * static_cast<double>(state) * states_read,
              operations * static_cast<double>(state) * count,
              c.chunked ? bench.machine.bf16 : bench.machine.f32, [&](int i) {
                ops.GatedDelta({.q = mixed,
                                .k = mixed + of.key_heads * kDim,
                                .v = mixed + 2 * of.key_heads * kDim,
                                .ld = mixed_width,
                                .q_stride = kDim,
                                .k_stride = kDim,
                                .v_stride = group * of.value_dim,
                                .a = ab,
                                .b = ab + heads * decays,
                                .ld_gates = heads * (decays + 1),
                                .a_stride = group * decays,
                                .b_stride = group,
                                .rate = zeros,
                                .bias = zeros,
                                .rule = of.rule,
                                .skip = zeros,
                                .key_heads = of.key_heads,
                                .value_heads = heads,
                                .key_dim = kDim,
                                .value_dim = of.value_dim,
                                .states = states + inputs,
                                .state_stride = inputs + state,
                                .sequences = spans[i % spans.size()],
                                .num_sequences = sequences,
                                .m = m,
                                .gates = gates,
                                .out = out,
                                .ldo = values,
                                .chunked = c.chunked,
                                .chunk_scratch = chunk_scratch});
              });
  }
}

// Qwen3-Next-80B, Kimi-Linear-48B and Nemotron-3-Nano-30B.
void BenchRecurrent(Bench& bench) {
  using Rule = kernels::StateRule;
  for (const RecurrentShape& of : {RecurrentShape{"gated-delta", Rule::kDelta, 16, 32, 128},
                                   {"key-delta", Rule::kKeyDelta, 32, 32, 128},
                                   {"mamba-2", Rule::kMamba2, 8, 64, 64}})
    BenchRecurrent(bench, of);
}

}  // namespace

void DeviceOpsBench(const Options& options, const GpuMachine& machine, Report& report) {
  kernels::CudaDeviceOptions made = {.index = options.gpu,
                                     .dtype = DType::kBF16,
                                     .max_tokens = kMaxTokens,
                                     .max_sequences = 1,
                                     .max_pages = 1,
                                     .fused = false};
  const std::unique_ptr<Device> device = kernels::MakeCudaDevice(made);
  Bench bench{*device, machine, report};
  BenchRows(bench);
  BenchHeads(bench);
  BenchLinear(bench, WeightFormat::kF32, 256, 7168);
  BenchGroup(bench);
  BenchFront(bench);
  BenchRecurrent(bench);
  if (cuda::IsHopper()) {
    made.fused = true;
    const std::unique_ptr<Device> fused = kernels::MakeCudaDevice(made);
    Bench with_fused{*fused, machine, report};
    BenchFront(with_fused);
    BenchAddNorm(with_fused);
  }
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    BenchLinear(bench, format, 4096, 2048);
    BenchLinear(bench, format, 7168, 16384);
  }
}

}  // namespace switchyard::bench
