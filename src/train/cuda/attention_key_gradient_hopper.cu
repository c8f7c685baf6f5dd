// Problem: the gradients of keys and values on Hopper. Blocks: attention_hopper.cuh.
// Tiling: a block has 128 keys, as in FlashAttention-3's backward pass, and visits the rows that
// see them, 64 at a time, for each query head.
// Pipeline: products in flight while the threads of a warpgroup compute: dp during the
// probabilities, and dv during the gradients of the scores. The other warpgroup fills the gaps.
// Measured on one H200, with the gradient of queries: 51 % of the product rate for 16 heads of 128.
#include "train/cuda/attention_gradient_hopper.cuh"
#include "train/cuda/launch.cuh"

namespace switchyard::train::gpu {
namespace {

// Instead of those of attention_hopper.cuh: the sums of two gradients need more.
constexpr int kKeyConsumerRegisters = 240, kKeyProducerRegisters = 24;

// Rows of a step; fewer for large heads, whose sums need the registers.
template <int kQk>
constexpr int kRowsOfStep = kQk > 128 ? 32 : 64;

template <int kQk, int kV>
struct KeyShared {
  static constexpr int kRows = kRowsOfStep<kQk>;
  static constexpr int kStages = 4;

  alignas(1024) uint8_t keys[kConsumers][TileLayout<kQk, kTileRows>::kBytes];
  uint8_t values[kConsumers][TileLayout<kV, kTileRows>::kBytes];
  uint8_t queries[kStages][TileLayout<kQk, kRows>::kBytes];
  uint8_t douts[kStages][TileLayout<kV, kRows>::kBytes];
  alignas(16) float log_sums[kStages][kRows];  // · log2 e; +∞ after the end of the sequence
  float along[kStages][kRows];
  uint64_t keys_full;  // keys and values
  uint64_t full[kStages], empty[kStages];
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The 128 keys of a block and the rows that see them. Indices are relative to the sequence.
struct KeyBlock {
  int begin, rows;  // of the sequence
  int first;        // the block's first key, and the first row
  int kv_head, group;
  int tiles;  // tiles of kRows rows, for each query head
};
// Blocks that more rows see come first.
template <int kRows>
__device__ __forceinline__ KeyBlock KeyBlockOf(const AttentionShape& s, const BlockOrder& order) {
  const BlockIndex index = IndexOf(order, s);
  KeyBlock b;
  b.begin = index.begin;
  b.rows = index.rows;
  b.first = index.tile * kBlockRows;
  b.kv_head = index.head;
  b.group = static_cast<int>(s.heads / s.kv_heads);
  const int end = s.window > 0 ? min(b.rows, b.first + kBlockRows - 1 + s.window) : b.rows;
  b.tiles = (end - b.first + kRows - 1) / kRows;
  return b;
}

// One thread copies keys, values, queries and gradients of outputs.
template <int kQk, int kV>
__device__ __forceinline__ void ProduceRows(const HopperGradientParams& p, const KeyBlock& block,
                                            const GradientMaps& maps, KeyShared<kQk, kV>& shared) {
  using Shared = KeyShared<kQk, kV>;
  ptx::BarrierExpect(&shared.keys_full, sizeof(shared.keys) + sizeof(shared.values));
#pragma unroll
  for (int wg = 0; wg < kConsumers; ++wg) {
    const int row = block.begin + block.first + wg * kTileRows;
    LoadTile<kQk, kTileRows>(shared.keys[wg], &maps.k, block.kv_head * p.k_head, row,
                             &shared.keys_full);
    LoadTile<kV, kTileRows>(shared.values[wg], &maps.v, block.kv_head * p.v_head, row,
                            &shared.keys_full);
  }
  PipelineState ring;
  const int first = block.begin + block.first;
  int row = first, left = block.tiles;
  int q_column = block.kv_head * block.group * p.q_head;
  int d_column = block.kv_head * block.group * p.d_head;
  for (int steps = block.group * block.tiles; steps > 0; --steps, ring.Next(Shared::kStages)) {
    const int s = ring.stage;
    Await(&shared.empty[s], ring.parity ^ 1);
    ptx::BarrierExpect(&shared.full[s], sizeof(shared.queries[0]) + sizeof(shared.douts[0]));
    LoadTile<kQk, Shared::kRows>(shared.queries[s], &maps.q, q_column, row, &shared.full[s]);
    LoadTile<kV, Shared::kRows>(shared.douts[s], &maps.dout, d_column, row, &shared.full[s]);
    row += Shared::kRows;
    if (--left > 0) continue;
    left = block.tiles;
    row = first;
    q_column += p.q_head;
    d_column += p.d_head;
  }
}

// One warp copies a float of each row, times `factor`, in the order of ProduceRows. from: [heads,
// rows]. Rows after the end of the sequence have the value `none`.
template <int kQk, int kV>
__device__ __forceinline__ void ProduceFloats(const HopperGradientParams& p, const KeyBlock& block,
                                              const float* from, float factor, float none,
                                              float* to, KeyShared<kQk, kV>& shared) {
  using Shared = KeyShared<kQk, kV>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  from += block.kv_head * block.group * p.shape.rows + block.begin + block.first + lane;
  to += lane;
  const int real = block.rows - block.first - lane;
  PipelineState ring;
  int row = 0, left = block.tiles;
  for (int steps = block.group * block.tiles; steps > 0; --steps, ring.Next(Shared::kStages)) {
    Await(&shared.empty[ring.stage], ring.parity ^ 1);
#pragma unroll
    for (int c = 0; c < Shared::kRows; c += kWarp)
      to[ring.stage * Shared::kRows + c] = row + c < real ? from[row + c] * factor : none;
    ptx::BarrierArriveWarp(&shared.full[ring.stage]);
    row += Shared::kRows;
    if (--left > 0) continue;
    left = block.tiles;
    row = 0;
    from += p.shape.rows;
  }
}

// A consumer warpgroup. Scores are computed transposed, [keys, rows], so that the fragments of a
// thread are the left operands of the products that sum over the rows. So the rows of thread_ are
// keys, and its columns are rows.
template <int kQk, int kV>
class KeyConsumer {
  using Shared = KeyShared<kQk, kV>;
  static constexpr int kRows = Shared::kRows;

 public:
  __device__ __forceinline__ KeyConsumer(const HopperGradientParams& p, const KeyBlock& block,
                                         Shared& shared, int warpgroup)
      : p_(p),
        block_(block),
        shared_(shared),
        thread_(&shared, block.first, warpgroup),
        scale_(p.shape.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
#pragma unroll
    for (float& sum : dkeys_) sum = 0.0f;
#pragma unroll
    for (float& sum : dvalues_) sum = 0.0f;
    const int window = p_.shape.window;
    Await(thread_.memory.After(offsetof(Shared, keys_full)), 0);
    for (int in_group = 0; in_group < block_.group; ++in_group) {
      int row = block_.first;
      for (int i = 0; i < block_.tiles; ++i, row += kRows, ring_.Next(Shared::kStages)) {
        Await(thread_.Barrier(offsetof(Shared, full), ring_), ring_.parity);
        // Zeros have no effect: their probabilities are zero, too.
        if (row + kRows > block_.rows) {
          ClearTail<kQk, kRows>(shared_.queries[ring_.stage], block_.rows - row);
          ClearTail<kV, kRows>(shared_.douts[ring_.stage], block_.rows - row);
          FinishClear(thread_.warpgroup);
        }
        if (AllVisible(row, kRows, thread_.first, kTileRows, window)) {
          Step<false>(row);
        } else if (row + kRows > thread_.first &&
                   (window == 0 || row - (thread_.first + kTileRows - 1) < window)) {
          Step<true>(row);
        }
        ptx::BarrierArriveWarp(thread_.Barrier(offsetof(Shared, empty), ring_));
      }
    }
    SyncWarpgroup(thread_.warpgroup);  // all warps have read the keys and values
    const float scale = p_.shape.scale;
    StoreTile<kQk>(shared_.keys[thread_.warpgroup], dkeys_, scale, scale, p_.dk, block_.kv_head,
                   block_.begin, thread_.first, block_.rows);
    StoreTile<kV>(shared_.values[thread_.warpgroup], dvalues_, 1.0f, 1.0f, p_.dv, block_.kv_head,
                  block_.begin, thread_.first, block_.rows);
  }

 private:
  // Adds a tile of rows. No branches, because they would serialize the products in flight.
  template <bool kMasked>
  __device__ __forceinline__ void Step(int row) {
    const uint32_t queries =
        thread_.Tile(offsetof(Shared, queries), sizeof(shared_.queries[0]), ring_);
    const uint32_t douts = thread_.Tile(offsetof(Shared, douts), sizeof(shared_.douts[0]), ring_);
    ptx::WgmmaFence();
    StartRows<kQk, kRows>(thread_.OwnTile(offsetof(Shared, keys), sizeof(shared_.keys[0])), queries,
                          scores_);
    StartRows<kV, kRows>(thread_.OwnTile(offsetof(Shared, values), sizeof(shared_.values[0])),
                         douts, dp_);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(scores_);
    ToProbabilities<kMasked>(row);
    probabilities_.Pack(scores_);
    ptx::PinRegisters(dvalues_);
    probabilities_.Pin();
    ptx::WgmmaFence();
    StartColumns<kV, kRows>(probabilities_, douts, dvalues_);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(dp_);
    const float* along = shared_.along[ring_.stage] + thread_.column;
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      const float2 of_rows = *reinterpret_cast<const float2*>(along + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dp_[4 * n + i] = ScoreGradient<kMasked>(scores_[4 * n + i], dp_[4 * n + i],
                                                i % 2 == 0 ? of_rows.x : of_rows.y);
    }
    dscores_.Pack(dp_);
    ptx::PinRegisters(dkeys_);
    dscores_.Pin();
    ptx::WgmmaFence();
    StartColumns<kQk, kRows>(dscores_, queries, dkeys_);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(dvalues_);
    ptx::PinRegisters(dkeys_);
  }

  template <bool kMasked>
  __device__ __forceinline__ void ToProbabilities(int row) {
    const float* log_sums = shared_.log_sums[ring_.stage] + thread_.column;
    const int first = thread_.row - row - thread_.column;  // the first visible row in the tile
    const int window = WindowOf(p_.shape);
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
      const float2 of_rows = *reinterpret_cast<const float2*>(log_sums + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores_[4 * n + i];
        if constexpr (kMasked) {
          const int at = 8 * n + i % 2, first_of_key = first + i / 2 * 8;
          if (at < first_of_key || at >= first_of_key + window) x = -INFINITY;
        }
        x = ptx::Exp2(fmaf(x, scale_, i % 2 == 0 ? -of_rows.x : -of_rows.y));
      }
    }
  }

  const HopperGradientParams& p_;
  const KeyBlock& block_;
  Shared& shared_;
  const ConsumerThread thread_;
  const float scale_;
  PipelineState ring_;

  float scores_[kRows / 2], dp_[kRows / 2];
  Fragments<kRows> probabilities_, dscores_;
  float dkeys_[kQk / 2], dvalues_[kV / 2];
};

#endif

template <int kQk, int kV>
__global__ void __launch_bounds__(kHopperThreads, 1)
    HopperKeyGradientKernel(const __grid_constant__ HopperGradientParams p,
                            const __grid_constant__ GradientMaps maps) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = KeyShared<kQk, kV>;
  extern __shared__ __align__(1024) uint8_t memory[];
  static_assert(sizeof(Shared) <= 227 * 1024);
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) PrefetchMaps(maps.q, maps.k, maps.v, maps.dout);
  const KeyBlock block = KeyBlockOf<Shared::kRows>(p.shape, p.order);
  if (block.first >= block.rows) return;
  if (threadIdx.x == 0) {
    ptx::BarrierInit(&shared.keys_full, 1);
    InitRing(shared, 1 + 2 * ptx::kWarpArrivals);
  }
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / kWarp), warpgroup = warp / 4;
  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<kKeyProducerRegisters>();
    if (threadIdx.x == kConsumers * 128) {
      ProduceRows<kQk, kV>(p, block, maps, shared);
    } else if (warp == kConsumers * 4 + 1) {
      ProduceFloats<kQk, kV>(p, block, p.log_sums, kLog2E, INFINITY, shared.log_sums[0], shared);
    } else if (warp == kConsumers * 4 + 2) {
      ProduceFloats<kQk, kV>(p, block, p.along, 1.0f, 0.0f, shared.along[0], shared);
    }
  } else {
    ptx::AllocateRegisters<kKeyConsumerRegisters>();
    KeyConsumer<kQk, kV>(p, block, shared, warpgroup).Run();
  }
#endif
}

template <int kQk, int kV>
void StartKeyGradient(const AttentionGradientParams& p, Stream stream) {
  using Shared = KeyShared<kQk, kV>;
  constexpr auto kKernel = HopperKeyGradientKernel<kQk, kV>;
  static switchyard::cuda::SharedMemoryOptIn setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(setup.On(device, kKernel, sizeof(Shared)),
                          "shared memory of the gradient of keys");
  const AttentionShape& s = p.shape;
  const BlockOrder order = OrderOf(s, s.kv_heads, 2 * (kQk + kV) * (s.heads / s.kv_heads));
  Launch("gradient of keys", kKernel, GridOf(order), kHopperThreads, sizeof(Shared), stream,
         HopperParamsOf(p, order), MapsOf<kQk, kV>(p, Shared::kRows, kTileRows));
}

}  // namespace

void StartHopperKeyGradient(const AttentionGradientParams& p, Stream stream) {
  if (p.shape.qk_dim == 64) return StartKeyGradient<64, 64>(p, stream);
  if (p.shape.qk_dim == 128) return StartKeyGradient<128, 128>(p, stream);
  StartKeyGradient<192, 128>(p, stream);
}

}  // namespace switchyard::train::gpu
