// Parts of combined rows, and their weighted sums.
#pragma once

#include "moe/cuda/dispatchers/exchange_places.cuh"
#include "moe/cuda/dispatchers/row_codec.cuh"

namespace switchyard::cuda {

__device__ __forceinline__ uint32_t* FlagsOf(const ExchangeBatch& b, int rank, int64_t flags) {
  return reinterpret_cast<uint32_t*>(b.slot[rank] + flags);
}

// A range of a row, in units of 16-byte vectors.
struct Run {
  int begin, end;
};
// The range of part `part` of a row of `vectors` vectors. Parts begin at multiples of 32 vectors,
// because each lane of a warp processes one vector at a time.
__device__ __forceinline__ Run PartOf(int vectors, int parts, int part) {
  const int steps = (vectors + 31) / 32, size = (steps + parts - 1) / parts * 32;
  return {part * size, min((part + 1) * size, vectors)};
}

// Computes sum = Σ weight · row over a list of terms, in list order from zero. Each product and
// each sum is rounded. terms(add) calls add(row, weight, weighted) for each term; if `weighted` is
// false, the row is added without multiplication by `weight`. Then store(vector, sums) is called
// for each 16-byte vector of the range.
template <int kElements, int kVectors, typename Terms, typename StoreSums>
__device__ __forceinline__ void SumRun(Run run, const Terms& terms, const StoreSums& store) {
  for (int first = run.begin; first < run.end; first += 32 * kVectors) {
    float sums[kVectors][kElements] = {};
    terms([&](const uint4* row, float weight, bool weighted) {
      uint4 words[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int i = first + 32 * v + Lane();
        words[v] = i < run.end ? row[i] : uint4{};
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float values[kElements];
        Unpack(words[v], values);
#pragma unroll
        for (int e = 0; e < kElements; ++e)
          sums[v][e] = __fadd_rn(sums[v][e], weighted ? __fmul_rn(weight, values[e]) : values[e]);
      }
    });
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = first + 32 * v + Lane();
      if (i < run.end) store(i, sums[v]);
    }
  }
}

}  // namespace switchyard::cuda
