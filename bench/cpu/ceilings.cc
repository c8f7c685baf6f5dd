#include "bench/cpu/ceilings.h"

#include <fmt/format.h>

#include <vector>

#include "bench/cpu/peaks.h"
#include "core/parallel.h"
#include "kernels/ops.h"
#include "kernels/roofline.h"

namespace switchyard::bench {

CpuCeilings MeasureCpu(int threads, Report& report) {
  ThreadPool pool(threads);
  const std::vector<PeakLoop> loops = PeakLoops();
  const kernels::Isa isa = kernels::ActiveIsa();
  const bool wide = isa >= kernels::Isa::kAvx512;
  const bool vnni = wide && __builtin_cpu_supports("avx512vnni");
  const bool pairs = wide && __builtin_cpu_supports("avx512bf16");
  const bool amx = isa == kernels::Isa::kAmx;
  const char* float32 = wide ? "float32 avx512" : "float32 avx2";
  const char* int8 = amx ? "int8 amx" : vnni ? "int8 avx512" : "int8 avx2";
  const char* bf16 = amx ? "bfloat16 amx" : pairs ? "bfloat16 avx512" : float32;
  const auto peak = [&](const char* name) { return MeasurePeak(FindPeakLoop(loops, name), pool); };
  const CpuCeilings ceilings = {.bandwidth = kernels::MeasureReadBandwidth(threads),
                                .peak = peak(float32),
                                .int8_peak = peak(int8),
                                .bf16_peak = peak(bf16)};
  report.Note(fmt::format("{} threads, {}", threads, kernels::Name(isa)));
  report.Machine("reads from memory", ceilings.bandwidth * 1e-9, "GB/s");
  report.Machine("float32", ceilings.peak * 1e-9, "GFLOP/s");
  report.Machine("int8", ceilings.int8_peak * 1e-9, "GOP/s");
  report.Machine("bfloat16", ceilings.bf16_peak * 1e-9, "GFLOP/s");
  return ceilings;
}

}  // namespace switchyard::bench
