// Peak arithmetic rates of a core: loops of one instruction, with enough independent chains to keep
// the units busy.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/parallel.h"

namespace switchyard::bench {

struct PeakLoop {
  std::string_view name;         // type and instruction set: "float32 avx512"
  std::string_view instruction;  // "vfmadd, 512 bits"
  double operations;             // operations of one step; a multiply-add is two
  void (*run)(int64_t steps);    // runs on the calling thread
};

// The loops for the instructions that this CPU and its operating system support: float32, bfloat16
// and int8 with AVX2, AVX-512 and AMX.
std::vector<PeakLoop> PeakLoops();
// Finds a loop by its name; CHECKs that it exists.
const PeakLoop& FindPeakLoop(const std::vector<PeakLoop>& loops, std::string_view name);

// Seconds for `steps` steps on every thread of the pool concurrently: the minimum of several runs,
// since other work on the machine only adds time. Takes a fifth of a second.
double LeastSeconds(const PeakLoop& loop, int64_t steps, ThreadPool& pool);
// Operations per second of all threads together.
double MeasurePeak(const PeakLoop& loop, ThreadPool& pool);

// The loops of AMX's tiles, for PeakLoops.
void AddAmxPeakLoops(std::vector<PeakLoop>& loops);

}  // namespace switchyard::bench
