// DenseGemm on one GPU, from one row to many. Successive calls use different copies of the weights,
// in total more than the L2 cache holds. The reported bytes are those of weights, activations and
// results. "in a chain": each product starts before the previous one has ended, as in a pass. With
// --plans it prints the times of all plans among which PlanDenseGemm chooses.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/cuda/gpu_arrays.cuh"
#include "bench/cuda/gpu_benches.h"
#include "bench/cuda/gpu_timing.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_problem.h"

namespace switchyard::bench {
namespace {

using namespace cuda;

constexpr size_t kWeightBytes = size_t{512} << 20;

void PrintPlans(GemmProblem p, size_t weights, int calls) {
  const CurrentGpu gpu = FindCurrentGpu();
  const auto* first = static_cast<const char*>(p.b);
  const GemmPlan chosen = PlanDenseGemm(p.fp8, p.rows, p.n, p.k, gpu.processors);
  std::printf("%s %6lld x %6lld x %5lld ", p.fp8 ? "fp8 " : "bf16", static_cast<long long>(p.rows),
              static_cast<long long>(p.n), static_cast<long long>(p.k));
  std::vector<GemmPlan> plans = {PlanManyRows(p.fp8)};
  for (const int weight_rows : {16, 32, 64, 128})
    for (const int cluster : {1, 2})
      plans.push_back({.few_rows = true, .weight_rows = weight_rows, .cluster = cluster});
  for (const int weight_rows : {16, 32, 64})
    if (p.rows <= kFourStepsMaxTokens)
      plans.push_back({.few_rows = true, .weight_rows = weight_rows, .steps = 4});
  for (const GemmPlan& plan : plans) {
    const double seconds = GraphSeconds(calls, [&](int i, cudaStream_t stream) {
      p.b = first + i % weights * p.n * p.k * (p.fp8 ? 1 : 2);
      LaunchGemm(p, plan, gpu, stream);
    });
    std::printf(" %s%d%s%s%s %.1f", plan.few_rows ? "" : "m", plan.weight_rows,
                plan.cluster == 2 ? "c" : "", plan.steps == 4 ? "s" : "", plan == chosen ? "*" : "",
                seconds * 1e6);
  }
  std::printf("\n");
}

template <typename T>
void Cases(int64_t n, int64_t k, const std::vector<int64_t>& all_ms, bool plans,
           const GpuMachine& machine, Report& report, bool chained = false) {
  constexpr bool kFp8 = sizeof(T) == 1;
  const std::string name = "dense-gemm";
  const auto shape_of = [&](int64_t m) {
    return Text("%s %lld x %lld x %lld%s", kFp8 ? "fp8" : "bf16", static_cast<long long>(m),
                static_cast<long long>(n), static_cast<long long>(k), chained ? " in a chain" : "");
  };
  std::vector<int64_t> ms;
  for (const int64_t m : all_ms)
    if (report.Selects(name, shape_of(m))) ms.push_back(m);
  if (ms.empty()) return;
  const size_t weights = std::max<size_t>(1, kWeightBytes / (n * k * sizeof(T)));
  const int64_t most = ms.back();
  DeviceArray<T> x(most * k), w(weights * n * k);
  DeviceArray<float> x_scales(most * (k / 128)), w_scales((n + 127) / 128 * (k / 128)), y(most * n);
  FillNormal<<<1024, 256>>>(x.data, most * k, 1);
  FillNormal<<<1024, 256>>>(w.data, weights * n * k, uint64_t{1} << 40);
  FillScales<<<256, 256>>>(x_scales.data, most * (k / 128), 7);
  FillScales<<<256, 256>>>(w_scales.data, (n + 127) / 128 * (k / 128), 9);
  Check(cudaDeviceSynchronize(), "made-up weights");
  for (const int64_t m : ms) {
    report.Start(name, shape_of(m));
    const int calls = std::clamp(static_cast<int>(4e12 / (2.0 * m * n * k)), 2, 64);
    if (plans && !chained) {
      PrintPlans({.fp8 = kFp8,
                  .a = x.data,
                  .lda = k,
                  .a_scales = kFp8 ? x_scales.data : nullptr,
                  .ld_a_scales = most,
                  .b = w.data,
                  .b_scales = kFp8 ? w_scales.data : nullptr,
                  .d = y.data,
                  .ldd = n,
                  .float_output = true,
                  .rows = m,
                  .n = n,
                  .k = k},
                 weights, calls);
      continue;
    }
    const double seconds = GraphSeconds(calls, [&](int i, cudaStream_t stream) {
      const DenseGemmParams p = {.x = x.data,
                                 .x_scales = kFp8 ? x_scales.data : nullptr,
                                 .ld_x_scales = most,
                                 .w = w.data + i % weights * n * k,
                                 .w_scales = kFp8 ? w_scales.data : nullptr,
                                 .y = y.data,
                                 .m = m,
                                 .n = n,
                                 .k = k};
      DenseGemm(p, PdlStream(stream, chained));
    });
    const double bytes = static_cast<double>((n + m) * k * sizeof(T) + m * n * 4);
    const double operations = 2.0 * m * n * k;
    report.Add({.name = name,
                .shape = shape_of(m),
                .seconds = seconds,
                .flops = operations,
                .bytes = bytes,
                .limit = Roofline(bytes, machine.bandwidth(), operations,
                                  kFp8 ? machine.fp8 : machine.bf16)});
  }
}

}  // namespace

void DenseGemmBench(const Options& options, const GpuMachine& machine, Report& report) {
  const bool plans = options.plans;
  const std::vector<int64_t> ms = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
  Cases<__nv_bfloat16>(2048, 4096, ms, plans, machine, report);             // Qwen3-30B-A3B: o
  Cases<__nv_bfloat16>(5120, 2048, ms, plans, machine, report);             // Qwen3-30B-A3B: q, k,
                                                                            // v
  Cases<__nv_bfloat16>(7168, 16384, ms, plans, machine, report);            // DeepSeek-V3: o
  Cases<__nv_bfloat16>(1536, 7168, ms, plans, machine, report);             // DeepSeek-V3: q_a
  Cases<__nv_bfloat16>(256, 7168, ms, plans, machine, report);              // DeepSeek-V3: router
  Cases<__nv_bfloat16>(129280, 7168, {1, 16, 64}, plans, machine, report);  // DeepSeek-V3: head
  Cases<__nv_fp8_e4m3>(7168, 16384, ms, plans, machine, report);
  Cases<__nv_fp8_e4m3>(4096, 7168, ms, plans, machine, report);
  // As in a pass: each product starts early. `bench calibrate` uses these.
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{2048, 4096}, {5120, 2048}, {7168, 16384}}) {
    Cases<__nv_bfloat16>(n, k, ms, plans, machine, report, /*chained=*/true);
    Cases<__nv_fp8_e4m3>(n, k, ms, plans, machine, report, /*chained=*/true);
  }
  Cases<__nv_bfloat16>(1536, 7168, ms, plans, machine, report, /*chained=*/true);
  for (const int64_t k : {2048, 8192})
    Cases<__nv_bfloat16>(256, k, {1, 16, 64}, plans, machine, report, /*chained=*/true);
}

}  // namespace switchyard::bench
