// Attention over a bfloat16 cache with bfloat16 products (vdpbf16ps), which have twice the float32
// throughput. Keys and values are operands as stored, without conversion. Queries are rounded to
// bfloat16 once per task. Exponentials are summed in float32 first, then rounded. Blocks, parts,
// maxima and sums are as in simd/attention.h.
//
// Within a block, a query's exponential is zero for keys that it does not attend to. So all queries
// of a tile visit the same pairs. Adding zeros changes no sum. vdpbf16ps flushes subnormals, so its
// sums are normal or zero. Only an initial sum can be subnormal; the product with the query's first
// key would flush it in any case.
#include <immintrin.h>

#include "kernels/cpu/avx512/bf16_pairs.h"
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/weighted_rows.h"

namespace switchyard::kernels::cpu::avx512 {
namespace {

using simd::KeyAddresses;
using simd::KeyRange;
using simd::ResolveKeys;
using simd::RowPrefetch;

constexpr int kLanes = Vec::kLanes;
constexpr int kKeyVectors = kKeyBlock / kLanes;
static_assert(kKeyVectors == 4);  // columns of a score tile

const __m256i* Halves(const char* p) { return reinterpret_cast<const __m256i*>(p); }

// Reuses the buffers of float32 operands for bfloat16 operands (half the size) and for the queries.
struct PairState : simd::AttentionState<Vec> {
  uint32_t* key_pairs;    // [k_width / 2, kKeyBlock] elements 2 d and 2 d + 1 of a key
  uint16_t* rounded;      // [queries, q_stride] rounded queries
  uint32_t* value_pairs;  // [kKeyBlock / 2, acc_stride] same element of values 2 j, 2 j + 1
  int64_t q_stride;

  // Stores bfloat16 to the first half of the row, whose scores have already been read.
  static void StoreWeights(float* w, int64_t j, __m512 e) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(w + j / 2), RoundToBF16(e));
  }

  explicit PairState(const AttentionTask& task)
      : AttentionState(task), q_stride(simd::Padded<Vec>(task.k_width)) {
    key_pairs = reinterpret_cast<uint32_t*>(keys);
    rounded = reinterpret_cast<uint16_t*>(keys + kKeyBlock * q_stride / 2);
    value_pairs = reinterpret_cast<uint32_t*>(values);
    for (int64_t i = 0; i < queries; ++i) {
      const float* q = t.q + i / t.group * t.ldq + i % t.group * t.k_width;
      uint16_t* to = rounded + i * q_stride;
      for (int64_t d = 0; d < t.k_width; d += kLanes) {
        const int64_t left = t.k_width - d;
        Vec::StoreBF16(to + d, left >= kLanes ? Vec::Load(q + d) : Vec::LoadN(q + d, left));
      }
    }
  }
};

// Transposes pairs of elements to columns; zeros where there is no key.
void TransposePairs(const KeyAddresses& places, int64_t width, uint32_t* out) {
  const int64_t pairs = width / 2;
  for (int64_t first = 0; first < kKeyBlock; first += kLanes) {
    for (int64_t d = 0; d < pairs; d += kLanes) {
      const int64_t count = pairs - d < kLanes ? pairs - d : kLanes;
      __m512 x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const char* p = places.k[first + i];
        x[i] = p == nullptr ? Vec::Zero()
                            : _mm512_castsi512_ps(_mm512_maskz_loadu_epi32(
                                  Vec::First(count), p + d * int64_t{sizeof(uint32_t)}));
      }
      Vec::Transpose(x);
      uint32_t* to = out + d * kKeyBlock + first;
      for (int i = 0; i < count; ++i) _mm512_storeu_ps(to + i * kKeyBlock, x[i]);
    }
  }
}

// Up to 16 elements of the value at p from element c on; zeros where there is no key.
__m512i ValueElements(const char* p, int64_t c, int64_t width) {
  if (p == nullptr) return _mm512_setzero_si512();
  const char* at = p + c * int64_t{sizeof(uint16_t)};
  const int64_t left = width - c;
  return _mm512_cvtepu16_epi32(left >= kLanes ? _mm256_loadu_si256(Halves(at))
                                              : _mm256_maskz_loadu_epi16(Vec::First(left), at));
}

void LoadKeys(PairState& s, int64_t block, KeyRange range) {
  const AttentionTask& t = s.t;
  KeyAddresses places;
  ResolveKeys<Vec>(t, block, range, places);
  TransposePairs(places, t.k_width, s.key_pairs);
  const char* const* from = t.v_in_k ? places.k : places.v;
  for (int64_t j = range.begin & ~int64_t{1}; j < range.end; j += 2) {
    uint32_t* to = s.value_pairs + j / 2 * s.acc_stride;
    for (int64_t c = 0; c < t.v_width; c += kLanes) {
      const __m512i low = ValueElements(from[j], c, t.v_width);
      const __m512i high = _mm512_slli_epi32(ValueElements(from[j + 1], c, t.v_width), 16);
      _mm512_storeu_si512(to + c, _mm512_or_si512(low, high));
    }
  }
}

// Broadcasts pair `pair` of the row to every lane.
[[gnu::always_inline]] inline __m512i Broadcast(const uint16_t* row, int64_t pair) {
  int32_t both;
  __builtin_memcpy(&both, row + 2 * pair, sizeof(both));
  __m512i x = _mm512_set1_epi32(both);
  asm("" : "+v"(x));  // prevents a reload for each product
  return x;
}

// Scores of M queries with all keys of the block. Neither this function nor PairValues below is
// inlined. Inside the loop over blocks, their accumulators would spill to the stack, which costs
// half of the time.
template <int M>
[[gnu::noinline]] void PairScores(const PairState& s, int64_t query, RowPrefetch& requests) {
  RowPrefetch next = requests;
  __m512 acc[M][kKeyVectors];
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  const uint32_t* column = s.key_pairs;
  const uint16_t* q = s.rounded + query * s.q_stride;
  const int64_t pairs = s.t.k_width / 2;
  for (int64_t d = 0; d < pairs; ++d, column += kKeyBlock) {
    __m512i keys[kKeyVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) keys[v] = _mm512_loadu_si512(column + v * kLanes);
    next.Step();
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const __m512i element = Broadcast(q + r * s.q_stride, d);
#pragma GCC unroll 4
      for (int v = 0; v < kKeyVectors; ++v) AddPairs(acc[r][v], keys[v], element);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    float* out = s.weights + (query + r) * kKeyBlock;
#pragma GCC unroll 4
    for (int v = 0; v < kKeyVectors; ++v) Vec::Store(out + v * kLanes, acc[r][v]);
  }
  requests = next;
}

int64_t TilesOf(int64_t queries) { return (queries + Vec::kTileRows - 1) / Vec::kTileRows; }

// Divides the queries [begin, end) into tiles. Calls f.template operator()<M>(query) for each tile:
// its M queries begin at `query`.
template <class Function>
void ForTiles(int64_t begin, int64_t end, const Function& f) {
  const int64_t count = end - begin, tiles = TilesOf(count);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t query = begin + count * tile / tiles;
    simd::ForRows<Vec>(begin + count * (tile + 1) / tiles - query,
                       [&]<int M>() { f.template operator()<M>(query); });
  }
}

void ScoreKeys(PairState& s) {
  RowPrefetch requests = s.KeyPrefetch(TilesOf(s.queries) * s.t.k_width / 2);
  ForTiles(0, s.queries, [&]<int M>(int64_t query) { PairScores<M>(s, query, requests); });
}

// Accumulates value pairs [begin, end), N vectors from column c on, for M queries.
template <int M, int N>
[[gnu::noinline]] void PairValues(const PairState& s, int64_t query, int64_t begin, int64_t end,
                                  int64_t c, RowPrefetch& requests) {
  RowPrefetch next = requests;
  __m512 sum[M][N];
  float* acc = s.part.acc + query * s.acc_stride + c;
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[r][v] = Vec::Load(acc + r * s.acc_stride + v * kLanes);
  }
  const auto weights = reinterpret_cast<const uint16_t*>(s.weights + query * kKeyBlock);
  for (int64_t j = begin; j < end; ++j) {
    const uint32_t* row = s.value_pairs + j * s.acc_stride + c;
    __m512i values[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) values[v] = _mm512_loadu_si512(row + v * kLanes);
    next.Step();
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const __m512i weight = Broadcast(weights + r * 2 * kKeyBlock, j);
#pragma GCC unroll 4
      for (int v = 0; v < N; ++v) AddPairs(sum[r][v], values[v], weight);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) Vec::Store(acc + r * s.acc_stride + v * kLanes, sum[r][v]);
  }
  requests = next;
}

// Adds the values for all queries that attend to a key of the block; these queries are consecutive.
void AddValues(PairState& s, int64_t block, bool whole) {
  const auto sees = [&](int64_t i) {
    const KeyRange range = s.Range(i, block);
    return range.begin < range.end;
  };
  int64_t first = 0, last = s.queries;
  while (!whole && !sees(first)) ++first;
  while (!whole && !sees(last - 1)) --last;
  const int64_t begin = s.Range(first, block).begin / 2;
  const int64_t end = (s.Range(last - 1, block).end + 1) / 2;
  const int64_t vectors = s.acc_stride / kLanes, column_tiles = vectors / 4 + vectors % 4;
  RowPrefetch requests = s.ValuePrefetch(TilesOf(last - first) * (end - begin) * column_tiles);
  ForTiles(first, last, [&]<int M>(int64_t query) {
    int64_t c = 0;
    for (; c + 4 * kLanes <= s.acc_stride; c += 4 * kLanes) {
      PairValues<M, 4>(s, query, begin, end, c, requests);
    }
    for (; c < s.acc_stride; c += kLanes) PairValues<M, 1>(s, query, begin, end, c, requests);
  });
}

}  // namespace

void AttentionBF16(const AttentionTask& t) { simd::Attend<PairState>(t); }

}  // namespace switchyard::kernels::cpu::avx512
