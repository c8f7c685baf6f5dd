// Loops that do nothing but one instruction's arithmetic, in as many independent chains as keep the
// units busy: what a core reaches at best.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/parallel.h"

namespace switchyard::bench {

struct PeakLoop {
  std::string_view name;         // type and instruction set: "float32 avx512"
  std::string_view instruction;  // "vfmadd, 512 bits"
  double operations;             // of one step, two to a multiply-add
  void (*run)(int64_t steps);    // on the calling thread
};

// Those whose instructions this CPU and its operating system have: float32, bfloat16 and int8 of
// AVX2, AVX-512 and AMX.
std::vector<PeakLoop> PeakLoops();
// One of them by its name; CHECKs that it is there.
const PeakLoop& FindPeakLoop(const std::vector<PeakLoop>& loops, std::string_view name);

// Seconds in which every thread of the pool runs `steps` steps, all at once: the least of several
// times, as whatever else the machine does only adds to it. A fifth of a second.
double LeastSeconds(const PeakLoop& loop, int64_t steps, ThreadPool& pool);
// Operations per second of all threads together.
double MeasurePeak(const PeakLoop& loop, ThreadPool& pool);

// The loops of AMX's tiles, for PeakLoops.
void AddAmxPeakLoops(std::vector<PeakLoop>& loops);

}  // namespace switchyard::bench
