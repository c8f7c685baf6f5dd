// Attention over a paged cache on CPUs, as `bench kernels` runs it.
#pragma once

#include "bench/cpu/ceilings.h"
#include "bench/report.h"
#include "core/parallel.h"

namespace switchyard::bench {

// Decoding and chunks of prompts on long contexts, in Qwen3-MoE's and DeepSeek-V3's shapes, for
// each type of cache.
void BenchAttention(const CpuCeilings& ceilings, ThreadPool& pool, Report& report);

}  // namespace switchyard::bench
