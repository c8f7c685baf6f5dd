// Attention over a paged cache on CPUs, as `bench kernels` runs it.
#pragma once

#include "bench/cpu/ceilings.h"
#include "bench/report.h"
#include "core/parallel.h"

namespace switchyard::bench {

// Decode and chunked prefill on long contexts, in the shapes of Qwen3-MoE and DeepSeek-V3, for each
// type of KV cache.
void BenchAttention(const CpuCeilings& ceilings, ThreadPool& pool, Report& report);

}  // namespace switchyard::bench
