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
  const char* int8 = isa == kernels::Isa::kAmx ? "int8 amx" : vnni ? "int8 avx512" : "int8 avx2";
  const auto peak = [&](const char* name) { return MeasurePeak(FindPeakLoop(loops, name), pool); };
  const CpuCeilings ceilings = {.bandwidth = kernels::MeasureReadBandwidth(threads),
                                .peak = peak(wide ? "float32 avx512" : "float32 avx2"),
                                .int8_peak = peak(int8)};
  report.Note(fmt::format("{} threads, {}", threads, kernels::Name(isa)));
  report.Machine("reads from memory", ceilings.bandwidth * 1e-9, "GB/s");
  report.Machine("float32", ceilings.peak * 1e-9, "GFLOP/s");
  report.Machine("int8", ceilings.int8_peak * 1e-9, "GOP/s");
  return ceilings;
}

}  // namespace switchyard::bench
