// Problem: the gradient of queries on Hopper. Blocks: attention_hopper.cuh.
// Tiling: a block has 128 rows of one head and visits the visible keys, 128 at a time, in ascending
// order.
// Pipeline: the product of dp runs while the threads of a warpgroup compute the probabilities. The
// other warpgroup fills the gaps. Measured: attention_key_gradient_hopper.cu.
#include "train/cuda/attention_gradient_hopper.cuh"
#include "train/cuda/launch.cuh"

namespace switchyard::train::gpu {
namespace {

// Keys of a step; fewer for large heads, whose sums need the registers.
template <int kQk>
constexpr int kKeysOfStep = kQk > 128 ? 64 : 128;

template <int kQk, int kV>
struct RowShared {
  static constexpr int kKeys = kKeysOfStep<kQk>;
  static constexpr int kStages = kKeys > 64 ? 2 : 3;

  alignas(1024) uint8_t queries[kConsumers][TileLayout<kQk, kTileRows>::kBytes];
  uint8_t douts[kConsumers][TileLayout<kV, kTileRows>::kBytes];
  uint8_t keys[kStages][TileLayout<kQk, kKeys>::kBytes];
  uint8_t values[kStages][TileLayout<kV, kKeys>::kBytes];
  uint64_t rows_full;  // queries and gradients of outputs
  uint64_t full[kStages], empty[kStages];
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// One thread.
template <int kQk, int kV>
__device__ __forceinline__ void ProduceKeys(const HopperGradientParams& p, const RowBlock& block,
                                            const GradientMaps& maps, RowShared<kQk, kV>& shared) {
  using Shared = RowShared<kQk, kV>;
  ptx::BarrierExpect(&shared.rows_full, sizeof(shared.queries) + sizeof(shared.douts));
#pragma unroll
  for (int wg = 0; wg < kConsumers; ++wg) {
    const int row = block.begin + block.first + wg * kTileRows;
    LoadTile<kQk, kTileRows>(shared.queries[wg], &maps.q, block.head * p.q_head, row,
                             &shared.rows_full);
    LoadTile<kV, kTileRows>(shared.douts[wg], &maps.dout, block.head * p.d_head, row,
                            &shared.rows_full);
  }
  const int k_column = block.kv_head * p.k_head, v_column = block.kv_head * p.v_head;
  int row = block.begin + block.first_key;
  PipelineState ring;
  for (int i = 0; i < block.tiles; ++i, row += Shared::kKeys, ring.Next(Shared::kStages)) {
    const int s = ring.stage;
    Await(&shared.empty[s], ring.parity ^ 1);
    ptx::BarrierExpect(&shared.full[s], sizeof(shared.keys[0]) + sizeof(shared.values[0]));
    LoadTile<kQk, Shared::kKeys>(shared.keys[s], &maps.k, k_column, row, &shared.full[s]);
    LoadTile<kV, Shared::kKeys>(shared.values[s], &maps.v, v_column, row, &shared.full[s]);
  }
}

// A consumer warpgroup. The columns of thread_ are keys.
template <int kQk, int kV>
class RowConsumer {
  using Shared = RowShared<kQk, kV>;
  static constexpr int kKeys = Shared::kKeys;

 public:
  __device__ __forceinline__ RowConsumer(const HopperGradientParams& p, const RowBlock& block,
                                         Shared& shared, int warpgroup)
      : p_(p),
        block_(block),
        shared_(shared),
        thread_(&shared, block.first, warpgroup),
        scale_(p.shape.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
#pragma unroll
    for (float& sum : dqueries_) sum = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(block_.rows - 1, thread_.row + 8 * half);
      const int64_t at = block_.head * p_.shape.rows + block_.begin + row;
      log_sums_[half] = p_.log_sums[at] * kLog2E;
      along_[half] = p_.along[at];
    }
    const int window = p_.shape.window;
    Await(thread_.memory.After(offsetof(Shared, rows_full)), 0);
    int key = block_.first_key;
    for (int i = 0; i < block_.tiles; ++i, key += kKeys, ring_.Next(Shared::kStages)) {
      Await(thread_.Barrier(offsetof(Shared, full), ring_), ring_.parity);
      // Gradients of these scores are zero. Values are not summed over.
      if (key + kKeys > block_.rows) {
        ClearTail<kQk, kKeys>(shared_.keys[ring_.stage], block_.rows - key);
        FinishClear(thread_.warpgroup);
      }
      if (AllVisible(thread_.first, kTileRows, key, kKeys, window)) {
        Step<false>(key);
      } else if (key < thread_.first + kTileRows &&
                 (window == 0 || thread_.first - (key + kKeys - 1) < window)) {
        Step<true>(key);
      }
      ptx::BarrierArriveWarp(thread_.Barrier(offsetof(Shared, empty), ring_));
    }
    SyncWarpgroup(thread_.warpgroup);  // all warps have read the queries
    const float scale = p_.shape.scale;
    StoreTile<kQk>(shared_.queries[thread_.warpgroup], dqueries_, scale, scale, p_.dq, block_.head,
                   block_.begin, thread_.first, block_.rows);
  }

 private:
  // Adds a tile of keys. No branches, because they would serialize the products in flight.
  template <bool kMasked>
  __device__ __forceinline__ void Step(int key) {
    const uint32_t keys = thread_.Tile(offsetof(Shared, keys), sizeof(shared_.keys[0]), ring_);
    const uint32_t values =
        thread_.Tile(offsetof(Shared, values), sizeof(shared_.values[0]), ring_);
    ptx::WgmmaFence();
    StartRows<kQk, kKeys>(thread_.OwnTile(offsetof(Shared, queries), sizeof(shared_.queries[0])),
                          keys, scores_);
    StartRows<kV, kKeys>(thread_.OwnTile(offsetof(Shared, douts), sizeof(shared_.douts[0])), values,
                         dp_);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(scores_);
    ToProbabilities<kMasked>(key);
    // Does not wait. The compiler does not move the probabilities across this loop, and without it
    // would move them after the wait for all products.
    ptx::BarrierWait(thread_.Barrier(offsetof(Shared, full), ring_), ring_.parity);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(dp_);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        dp_[4 * n + i] = ScoreGradient<kMasked>(scores_[4 * n + i], dp_[4 * n + i], along_[i / 2]);
    dscores_.Pack(dp_);
    ptx::PinRegisters(dqueries_);
    dscores_.Pin();
    ptx::WgmmaFence();
    StartColumns<kQk, kKeys>(dscores_, keys, dqueries_);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(dqueries_);
  }

  template <bool kMasked>
  __device__ __forceinline__ void ToProbabilities(int key) {
    const int last = thread_.row - key - thread_.column;  // the last visible key in the tile
    const int window = WindowOf(p_.shape);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores_[4 * n + i];
        if constexpr (kMasked) {
          const int at = 8 * n + i % 2, last_of_row = last + i / 2 * 8;
          if (at > last_of_row || at <= last_of_row - window) x = -INFINITY;
        }
        x = ptx::Exp2(fmaf(x, scale_, -log_sums_[i / 2]));
      }
    }
  }

  const HopperGradientParams& p_;
  const RowBlock& block_;
  Shared& shared_;
  const ConsumerThread thread_;
  const float scale_;
  PipelineState ring_;

  float log_sums_[2], along_[2];  // of the thread's rows; log-sums · log2 e
  float scores_[kKeys / 2], dp_[kKeys / 2];
  Fragments<kKeys> dscores_;
  float dqueries_[kQk / 2];
};

#endif

template <int kQk, int kV>
__global__ void __launch_bounds__(kHopperThreads, 1)
    HopperQueryGradientKernel(const __grid_constant__ HopperGradientParams p,
                              const __grid_constant__ GradientMaps maps) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = RowShared<kQk, kV>;
  extern __shared__ __align__(1024) uint8_t memory[];
  static_assert(sizeof(Shared) <= 227 * 1024);
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) PrefetchMaps(maps.q, maps.k, maps.v, maps.dout);
  const RowBlock block = RowBlockOf<Shared::kKeys>(p.shape, p.order);
  if (!block.IsReal()) return;
  if (threadIdx.x == 0) {
    ptx::BarrierInit(&shared.rows_full, 1);
    InitRing(shared, 1);
  }
  __syncthreads();
  const int warpgroup = Uniform(static_cast<int>(threadIdx.x) / 128);
  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers * 128) ProduceKeys<kQk, kV>(p, block, maps, shared);
  } else {
    ptx::AllocateRegisters<kConsumerRegisters>();
    RowConsumer<kQk, kV>(p, block, shared, warpgroup).Run();
  }
#endif
}

template <int kQk, int kV>
void StartQueryGradient(const AttentionGradientParams& p, Stream stream) {
  using Shared = RowShared<kQk, kV>;
  constexpr auto kKernel = HopperQueryGradientKernel<kQk, kV>;
  static switchyard::cuda::SharedMemoryOptIn setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(setup.On(device, kKernel, sizeof(Shared)),
                          "shared memory of the gradient of queries");
  const AttentionShape& s = p.shape;
  const int64_t group = s.heads / s.kv_heads;
  const BlockOrder order = OrderOf(s, s.heads, std::max<int64_t>(2 * (kQk + kV) / group, 1));
  Launch("gradient of queries", kKernel, GridOf(order), kHopperThreads, sizeof(Shared), stream,
         HopperParamsOf(p, order), MapsOf<kQk, kV>(p, kTileRows, Shared::kKeys));
}

}  // namespace

void StartHopperQueryGradient(const AttentionGradientParams& p, Stream stream) {
  if (p.shape.qk_dim == 64) return StartQueryGradient<64, 64>(p, stream);
  if (p.shape.qk_dim == 128) return StartQueryGradient<128, 128>(p, stream);
  StartQueryGradient<192, 128>(p, stream);
}

}  // namespace switchyard::train::gpu
