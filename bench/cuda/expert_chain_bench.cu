// The experts of one layer as a chain of kernels, as a pass launches them: copy of rows to experts,
// gate and up product, activation, down product, sum over slots. On Hopper each kernel starts early
// (kernel_chain.cuh), so the chain takes less time than its kernels alone. Experts are chosen at
// random. Each call uses other experts, or all of them, which the L2 cache cannot hold.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/expert_choice.h"
#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "core/cuda/runtime.h"
#include "kernels/cuda/gemm/gemm.h"
#include "moe/cuda/permute/expert_rows.h"

namespace switchyard::bench {
namespace {

using cuda::ElementType;
using cuda::kGroupBlockRows;

// Qwen3-30B-A3B.
constexpr int kExperts = 128, kSlots = 8;
constexpr int64_t kHidden = 2048, kWidth = 768;
constexpr int kCalls = kExpertChainCalls;

// The experts of a call's tokens.
struct Routing {
  std::vector<int32_t> position;  // [tokens, kSlots]
  std::vector<int32_t> offsets = std::vector<int32_t>(kExperts + 1);
  std::vector<int32_t> counts;        // [kExperts]
  std::vector<int32_t> block_groups;  // [rows / kGroupBlockRows]

  int64_t busy() const {
    return std::ranges::count_if(counts, [](int n) { return n > 0; });
  }
};

Routing Choose(int tokens, double popular, int64_t rows, std::mt19937& random) {
  Routing r;
  const std::vector<int32_t> chosen = ChooseExperts(tokens, kExperts, kSlots, popular, random);
  r.counts = RowsOfExperts(chosen, kExperts);
  for (int e = 0; e < kExperts; ++e) {
    const int blocks = (r.counts[e] + kGroupBlockRows - 1) / kGroupBlockRows;
    r.offsets[e + 1] = r.offsets[e] + blocks * kGroupBlockRows;
    r.block_groups.insert(r.block_groups.end(), blocks, e);
  }
  r.block_groups.resize(rows / kGroupBlockRows, -1);
  std::vector<int32_t> next = r.offsets;
  for (const int32_t e : chosen) r.position.push_back(next[e]++);
  return r;
}

struct DeviceRouting {
  explicit DeviceRouting(const Routing& r)
      : position(r.position),
        offsets(r.offsets),
        counts(r.counts),
        block_groups(r.block_groups),
        order{position.data, offsets.data, counts.data, block_groups.data} {}
  const DeviceArray<int32_t> position, offsets, counts, block_groups;
  const cuda::RowOrder order;
};

// The weights of all experts of a layer.
template <typename T>
struct Weights {
  Weights() {
    FillNormal<<<1024, 256>>>(gate_up.data, kExperts * 2 * kWidth * kHidden, 1);
    FillNormal<<<1024, 256>>>(down.data, kExperts * kWidth * kHidden, uint64_t{1} << 40);
    FillScales<<<256, 256>>>(scales.data, kExperts * 2 * kWidth / 128 * kHidden / 128, 9);
  }
  DeviceArray<T> gate_up{kExperts * 2 * kWidth * kHidden}, down{kExperts * kWidth * kHidden};
  DeviceArray<float> scales{kExperts * 2 * kWidth / 128 * kHidden / 128};
};

template <typename T>
void Case(std::unique_ptr<Weights<T>>& weights, int tokens, double popular,
          const GpuMachine& machine, Report& report) {
  constexpr bool kFp8 = sizeof(T) == 1;
  constexpr ElementType kType = kFp8 ? ElementType::kFp8 : ElementType::kBF16;
  const std::string name = "expert-chain";
  const std::string shape =
      Text("%s %d tokens, %d of %d experts of %lld x %lld%s", kFp8 ? "fp8" : "bf16", tokens, kSlots,
           kExperts, static_cast<long long>(kHidden), static_cast<long long>(kWidth),
           popular > 0 ? Text(", %g popular", popular).c_str() : "");
  if (!report.Selects(name, shape)) return;
  report.Start(name, shape);
  if (!weights) weights = std::make_unique<Weights<T>>();
  const int64_t slots = int64_t{tokens} * kSlots, rows = cuda::MaxOrderedRows(slots, kExperts);
  std::mt19937 random(tokens);
  std::vector<std::unique_ptr<DeviceRouting>> routings;
  double busy = 0;
  for (int i = 0; i < kCalls; ++i) {
    const Routing r = Choose(tokens, popular, rows, random);
    busy += static_cast<double>(r.busy()) / kCalls;
    routings.push_back(std::make_unique<DeviceRouting>(r));
  }
  DeviceArray<float> x(tokens * kHidden), y(tokens * kHidden), slot_weights(slots);
  DeviceArray<T> a(rows * kHidden), middle(rows * kWidth);
  DeviceArray<float> a_scales(rows * kHidden / 128), middle_scales(rows * kWidth / 128);
  DeviceArray<__nv_bfloat16> gate_up(rows * 2 * kWidth), out(rows * kHidden);
  FillNormal<<<1024, 256>>>(x.data, tokens * kHidden, 3);
  FillScales<<<256, 256>>>(slot_weights.data, slots, 5);
  cuda::Check(cudaDeviceSynchronize(), "made-up weights");

  // The layout that MlpProducts chooses.
  const bool by_counts = slots < int64_t{kGroupBlockRows} * kExperts;
  const auto multiply = [&](const void* rows_in, const float* scales, const T* b, void* d,
                            int64_t n, int64_t k, const cuda::RowOrder& order,
                            const cuda::PdlStream& chain) {
    cuda::GroupedGemmParams p = {.a = rows_in,
                                 .a_scales = kFp8 ? scales : nullptr,
                                 .b = b,
                                 .b_scales = kFp8 ? weights->scales.data : nullptr,
                                 .d = d,
                                 .rows = rows,
                                 .n = n,
                                 .k = k,
                                 .groups = kExperts};
    if (by_counts) {
      p.group_begins = order.offsets;
      p.group_rows = order.counts;
      p.groups_ready = true;
    } else {
      p.block_groups = order.block_groups;
    }
    kFp8 ? cuda::GroupedGemmFp8(p, chain) : cuda::GroupedGemmBf16(p, chain);
  };
  const double seconds = GraphSeconds(kCalls, [&](int i, cudaStream_t stream) {
    const cuda::PdlStream chain(stream, /*begins_early=*/true);
    const cuda::RowOrder& order = routings[i]->order;
    const cuda::RowChunk chunk = {
        .order = order, .rows = rows, .most_valid = std::min(rows, slots)};
    cuda::Check(cuda::PermuteRows({.in = {.capacity = tokens, .tokens = tokens},
                                   .rows = reinterpret_cast<const std::byte*>(x.data),
                                   .row_stride = kHidden * static_cast<int64_t>(sizeof(float)),
                                   .via = kFp8 ? ElementType::kF32 : kType,
                                   .hidden = kHidden,
                                   .k = kSlots,
                                   .chunk = chunk,
                                   .to = kType,
                                   .a = a.data,
                                   .a_scales = a_scales.data},
                                  chain),
                "rows of experts");
    multiply(a.data, a_scales.data, weights->gate_up.data, gate_up.data, 2 * kWidth, kHidden, order,
             chain);
    cuda::Check(cuda::Activate({.gate_up = gate_up.data,
                                .from = ElementType::kBF16,
                                .intermediate = kWidth,
                                .chunk = chunk,
                                .to = kType,
                                .middle = middle.data,
                                .scales = middle_scales.data},
                               chain),
                "activation");
    multiply(middle.data, middle_scales.data, weights->down.data, out.data, kHidden, kWidth, order,
             chain);
    cuda::Check(cuda::UnpermuteRows({.outputs = out.data,
                                     .type = ElementType::kBF16,
                                     .position = order.position,
                                     .weights = slot_weights.data,
                                     .tokens = tokens,
                                     .hidden = kHidden,
                                     .k = kSlots,
                                     .y = y.data},
                                    chain),
                "sums over slots");
  });
  const double of_expert = 3.0 * kWidth * kHidden, products = static_cast<double>(slots);
  const double bytes = busy * of_expert * sizeof(T);  // weights alone
  report.Add({.name = name,
              .shape = shape,
              .seconds = seconds,
              .flops = 2 * products * of_expert,
              .bytes = bytes,
              .limit = Roofline(bytes, machine.bandwidth(), 2 * products * of_expert,
                                kFp8 ? machine.fp8 : machine.bf16),
              .more = {{"experts with rows", busy}}});
}

template <typename T>
void Cases(const GpuMachine& machine, Report& report) {
  std::unique_ptr<Weights<T>> weights;
  for (const int tokens : {1, 8, 32, 128, 256, 512, 1024, 2048, 4096, 8192})
    Case<T>(weights, tokens, 0, machine, report);
  for (const double popular : {8.0, 24.0}) Case<T>(weights, 512, popular, machine, report);
}

}  // namespace

// Kernels that start early need Hopper.
void ExpertChainBench(const Options&, const GpuMachine& machine, Report& report) {
  if (!cuda::IsHopper()) return;
  Cases<__nv_fp8_e4m3>(machine, report);
  Cases<__nv_bfloat16>(machine, report);
}

}  // namespace switchyard::bench
