// What Hopper's attention kernels of training share: warp-specialized blocks (the scheme of
// FlashAttention-3, Shah et al., arXiv:2407.08608). A block has two consumer warpgroups, which own
// 64 rows or keys each, and a producer warpgroup, of which one thread copies tiles by TMA. The
// consumers share the tiles that the producer copies. They never wait for each other: one computes
// probabilities while the other multiplies.
//
// Barriers of a stage: `full` (copied) and `empty` (read by all consumer warps).
//
// The last tile of a sequence may contain rows of the next one. Their scores are masked. A
// probability of zero times a value that is not finite is not zero, so each warpgroup clears such
// rows in the tiles whose rows it sums over. Both clear the same rows, without waiting for each
// other: each reads them after its own writes, and all writes are equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/gemm/gemm_tiles.cuh"
#include "train/cuda/attention_tiles.cuh"

namespace switchyard::train::gpu {

using switchyard::cuda::PipelineState;

constexpr int kConsumers = 2;  // warpgroups
constexpr int kHopperThreads = 128 * (kConsumers + 1);
constexpr int kBlockRows = kTileRows * kConsumers;  // rows or keys that a block owns
constexpr uint32_t kReaders = kConsumers * 4 * ptx::kWarpArrivals;  // arrivals at `empty`
// Registers per thread after setmaxnreg. Three warpgroups have those of the launch: 168 each.
constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;

// Tensor map of all heads of an array, for boxes of box_rows rows × 64 columns.
inline CUtensorMap MapOfHeads(const HeadArray& a, int64_t rows, int64_t heads, int64_t dim,
                              int box_rows) {
  return switchyard::cuda::MakeTensorMap(a.data.data, rows, (heads - 1) * a.head + dim, 2, box_rows,
                                         64, a.row);
}

// The blocks of a grid and their order: `chunk` heads at a time, so that what their blocks read
// stays in L2. Within a chunk by tile, so that the longest blocks come first.
//
// Blocks are counted on the host, which knows the longest sequence only. So each sequence has as
// many tiles as the longest one, and some are empty. If too many would be empty (`slots`), sequence
// i has the tiles from begins[i] / 128 + i on, which leaves at most one of each sequence empty.
struct BlockOrder {
  int tiles;         // of a sequence, or of all sequences
  int heads, pairs;  // heads of a sequence, and heads that have `tiles` tiles
  int chunk;
  bool slots;
};
// bytes: what the blocks of a head read for each row of the sequence.
inline BlockOrder OrderOf(const AttentionShape& s, int64_t heads, int64_t bytes) {
  constexpr int64_t kL2Bytes = 32 << 20;
  const int64_t longest = CeilDiv(s.longest, kBlockRows);
  const int64_t slots = s.rows / kBlockRows + s.sequences;
  const bool uses_slots = longest * s.sequences > 2 * slots;
  const int64_t pairs = uses_slots ? heads : heads * s.sequences;
  const int64_t chunk = std::clamp<int64_t>(kL2Bytes / (s.longest * bytes), 1, pairs);
  return {static_cast<int>(uses_slots ? slots : longest), static_cast<int>(heads),
          static_cast<int>(pairs), static_cast<int>(chunk), uses_slots};
}
inline dim3 GridOf(const BlockOrder& order) { return Grid(int64_t{order.tiles} * order.pairs); }

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Tile `tile` of `tiles` of a sequence, whose rows are [begin, begin + rows). Some tiles do not
// exist: the first row is then negative or after the end.
struct BlockIndex {
  int tile, tiles, head, begin, rows;
};
__device__ __forceinline__ BlockIndex IndexOf(const BlockOrder& order, const AttentionShape& s) {
  const int of_chunk = order.tiles * order.chunk, block = static_cast<int>(blockIdx.x);
  const int first = block / of_chunk * order.chunk, in_chunk = block % of_chunk;
  const int width = min(order.chunk, order.pairs - first);
  const int pair = first + in_chunk % width, tile = in_chunk / width;
  if (!order.slots) {
    const int sequence = pair / order.heads, begin = s.begins[sequence];
    return {tile, order.tiles, pair % order.heads, begin, s.begins[sequence + 1] - begin};
  }
  int low = 0, high = s.sequences;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.begins[middle] / kBlockRows + middle <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int begin = s.begins[low], rows = s.begins[low + 1] - begin;
  return {tile - begin / kBlockRows - low, (rows + kBlockRows - 1) / kBlockRows, pair, begin, rows};
}

// Waits until a phase of a barrier is complete. After four seconds the kernel fails, so that an
// error in the protocol does not hang the GPU.
__device__ __forceinline__ void Await(ptx::SharedAddr barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done, late;\n\t.reg .u64 start, now;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "mov.u64 start, %%globaltimer;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra finished;\n\t"
      "mov.u64 now, %%globaltimer;\n\t"
      "sub.u64 now, now, start;\n\t"
      "setp.gt.u64 late, now, 4000000000;\n\t"
      "@late trap;\n\t"
      "bra again;\n\t"
      "finished:\n\t}" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
}

// The shuffle shows the compiler that all lanes have the same value. So descriptors of wgmma and
// addresses of barriers stay in uniform registers.
__device__ __forceinline__ int Uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ ptx::SharedAddr UniformAddress(const void* p) {
  ptx::SharedAddr place(p);
  place.address = __shfl_sync(~0u, place.address, 0);
  return place;
}

// A thread of a consumer warpgroup. Its block owns rows (or keys) from `block_first` on. Fragments
// of the thread have rows `row` and row + 8, and columns column + 8n and the next one of each tile.
struct ConsumerThread {
  ptx::SharedAddr memory;  // of the block
  int warpgroup;
  int first;  // the warpgroup's first row
  int row, column;

  __device__ __forceinline__ ConsumerThread(const void* shared, int block_first, int of_warpgroup)
      : memory(UniformAddress(shared)),
        warpgroup(of_warpgroup),
        first(block_first + warpgroup * kTileRows),
        row(first + static_cast<int>(threadIdx.x) % 128 / kWarp * 16 +
            static_cast<int>(threadIdx.x) % kWarp / 4),
        column(static_cast<int>(threadIdx.x) % 4 * 2) {}

  // Of arrays at an offset of the block's memory: the barrier of a stage, the tile of a stage, and
  // the tile of the warpgroup.
  __device__ __forceinline__ ptx::SharedAddr Barrier(size_t barriers,
                                                     const PipelineState& at) const {
    return memory.After(static_cast<uint32_t>(barriers + at.stage * sizeof(uint64_t)));
  }
  __device__ __forceinline__ uint32_t Tile(size_t tiles, size_t bytes,
                                           const PipelineState& at) const {
    return memory.address + static_cast<uint32_t>(tiles + at.stage * bytes);
  }
  __device__ __forceinline__ uint32_t OwnTile(size_t tiles, size_t bytes) const {
    return memory.address + static_cast<uint32_t>(tiles + warpgroup * bytes);
  }
};

// The 128 rows of a block and the keys that they see. Indices are relative to the sequence.
struct RowBlock {
  int begin, rows;  // of the sequence
  int first;        // the block's first row
  int head, kv_head;
  int first_key, tiles;  // tiles of kKeys keys

  __device__ __forceinline__ bool IsReal() const { return first >= 0 && first < rows; }
};
// Blocks with more keys come first.
template <int kKeys>
__device__ __forceinline__ RowBlock RowBlockOf(const AttentionShape& s, const BlockOrder& order) {
  const BlockIndex index = IndexOf(order, s);
  RowBlock b;
  b.begin = index.begin;
  b.rows = index.rows;
  b.first = (index.tiles - 1 - index.tile) * kBlockRows;
  b.head = index.head;
  b.kv_head = b.head / static_cast<int>(s.heads / s.kv_heads);
  b.first_key = FirstKey<kKeys>(b.first, s.window);
  b.tiles = (min(b.rows, b.first + kBlockRows) - b.first_key + kKeys - 1) / kKeys;
  return b;
}

// A window that holds every key, if the window is 0.
__device__ __forceinline__ int WindowOf(const AttentionShape& s) {
  return s.window > 0 ? s.window : 1 << 30;
}

template <typename... Maps>
__device__ __forceinline__ void PrefetchMaps(const Maps&... maps) {
  (ptx::PrefetchTensorMap(&maps), ...);
}

// Starts to copy rows [row, row + kRows) of all sequences' rows. `column`: of the head.
template <int kDim, int kRows>
__device__ __forceinline__ void LoadTile(uint8_t* to, const CUtensorMap* map, int column, int row,
                                         uint64_t* full) {
#pragma unroll
  for (int panel = 0; panel < kDim / 64; ++panel)
    ptx::LoadBox(to + panel * TileLayout<kDim, kRows>::kPanelBytes, map, column + panel * 64, row,
                 full);
}

// Zeroes rows [valid, kRows) of a tile with the threads of one warpgroup. FinishClear must follow.
template <int kDim, int kRows>
__device__ __forceinline__ void ClearTail(uint8_t* tile, int valid) {
  const int pieces = (kRows - valid) * 8;  // of 16 bytes, in each panel
  for (int i = static_cast<int>(threadIdx.x) % 128; i < kDim / 64 * pieces; i += 128)
    *reinterpret_cast<uint4*>(tile + i / pieces * TileLayout<kDim, kRows>::kPanelBytes +
                              valid * 128 + i % pieces * 16) = make_uint4(0, 0, 0, 0);
}
// Waits for the threads of a warpgroup: named barriers 1 and 2.
__device__ __forceinline__ void SyncWarpgroup(int warpgroup) {
  ptx::NamedBarrier(1 + warpgroup, 128);
}
__device__ __forceinline__ void FinishClear(int warpgroup) {
  ptx::FenceAsyncProxy();
  SyncWarpgroup(warpgroup);
}

// Starts sums [64, kColumns] = A · Bᵀ for a warpgroup, as one wgmma group: tile A [64, kDim] and
// tile B [kColumns, kDim] at these shared memory addresses. WgmmaFence must precede it.
template <int kDim, int kColumns>
__device__ __forceinline__ void StartRows(uint32_t a, uint32_t b, float (&sums)[kColumns / 2]) {
  const uint64_t left = DescriptorOf<16>(a), right = DescriptorOf<16>(b);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const int a_at = k / 4 * TileLayout<kDim, kTileRows>::kPanelBytes + k % 4 * 32;
    const int b_at = k / 4 * TileLayout<kDim, kColumns>::kPanelBytes + k % 4 * 32;
    ptx::WgmmaBf16(sums, left + a_at / 16, right + b_at / 16, k > 0);
  }
  ptx::WgmmaCommit();
}

// The left operand of StartColumns: 64 rows × kInner in bfloat16, with the layout of mma.sync.
template <int kInner>
struct Fragments {
  uint32_t words[kInner / 16][4];

  __device__ __forceinline__ void Pack(const float (&x)[kInner / 2]) {
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) words[k][i] = PackPair(x[8 * k + 2 * i], x[8 * k + 2 * i + 1]);
  }
  // The fence of wgmma must follow the instructions that write the operands.
  __device__ __forceinline__ void Pin() {
#pragma unroll
    for (int k = 0; k < kInner / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(words[k][i])::"memory");
  }
};

// Starts sums [64, kDim] += P · B for a warpgroup, as one wgmma group: P [64, kInner] in registers,
// tile B [kInner, kDim] in shared memory. WgmmaFence must precede it.
template <int kDim, int kInner>
__device__ __forceinline__ void StartColumns(const Fragments<kInner>& p, uint32_t b,
                                             float (&sums)[kDim / 2]) {
  const uint64_t right = DescriptorOf<TileLayout<kDim, kInner>::kPanelBytes>(b);
#pragma unroll
  for (int k = 0; k < kInner / 16; ++k)
    ptx::WgmmaBf16MnMajor(sums, p.words[k], right + k * 16 * 128 / 16, true);
  ptx::WgmmaCommit();
}

// Stores the sums of a warpgroup, multiplied by a factor for each half of a warp's rows, to rows
// [row, row + 64) of the sequence that begins at `begin`; rows from `end` on are not stored.
// `staging` [64 · kDim] bfloat16: a tile that the warpgroup does not read any more (SyncWarpgroup
// must precede). Every store instruction writes whole rows.
template <int kDim>
__device__ __forceinline__ void StoreTile(uint8_t* staging, const float (&sums)[kDim / 2],
                                          float first, float second, const MutableHeadArray& to,
                                          int64_t head, int64_t begin, int row, int end) {
  using Layout = TileLayout<kDim, kTileRows>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) % 128 / kWarp * 16;
#pragma unroll
  for (int n = 0; n < kDim / 8; n += 2) {
    const float* x = &sums[4 * n];
    ptx::StoreMatrices(staging + Layout::Offset(warp_row + lane % 16, n + lane / 16),
                       PackPair(x[0] * first, x[1] * first), PackPair(x[2] * second, x[3] * second),
                       PackPair(x[4] * first, x[5] * first),
                       PackPair(x[6] * second, x[7] * second));
  }
  __syncwarp();
  auto* data = static_cast<uint16_t*>(to.data.data) + head * to.head + begin * to.row;
  for (int i = lane; i < 16 * Layout::kPieces; i += kWarp) {
    const int r = warp_row + i / Layout::kPieces, piece = i % Layout::kPieces;
    if (row + r >= end) continue;
    *reinterpret_cast<uint4*>(data + (row + r) * to.row + piece * 8) =
        *reinterpret_cast<const uint4*>(staging + Layout::Offset(r, piece));
  }
}

#endif

}  // namespace switchyard::train::gpu
