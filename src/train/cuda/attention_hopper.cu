// Problem: attention forward on Hopper. Blocks: attention_hopper.cuh.
// Tiling: a block has 128 rows of one head and visits the visible keys in tiles of 128, in
// ascending order. Shared memory: the block's queries, and kStages tiles of keys and of values.
// Pipeline: while the tensor cores multiply the probabilities of one tile by its values, the
// threads compute the probabilities of the next tile.
// Measured on one H200, 4 × 4096 rows: 74 % of the product rate with 16 heads of 128, 45 % with
// heads of 64, 78 % with heads of 192 and values of 128.
#include "train/cuda/attention_hopper.cuh"
#include "train/cuda/launch.cuh"

namespace switchyard::train::gpu {
namespace {

struct HopperForwardParams {
  AttentionShape shape;
  BlockOrder order;
  int q_head, k_head, v_head;  // columns between heads
  MutableHeadArray out;
  float* log_sums;
};

template <int kQk, int kV>
struct ForwardShared {
  static constexpr int kKeys = 128;
  static constexpr int kStages = kQk > 128 ? 2 : 3;

  alignas(1024) uint8_t queries[kConsumers][TileLayout<kQk, kTileRows>::kBytes];
  uint8_t keys[kStages][TileLayout<kQk, kKeys>::kBytes];
  uint8_t values[kStages][TileLayout<kV, kKeys>::kBytes];
  uint64_t queries_full;
  uint64_t keys_full[kStages], keys_empty[kStages], values_full[kStages], values_empty[kStages];
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename Shared>
__device__ __forceinline__ void InitForwardBarriers(Shared& shared) {
  ptx::BarrierInit(&shared.queries_full, 1);
  for (int s = 0; s < Shared::kStages; ++s) {
    ptx::BarrierInit(&shared.keys_full[s], 1);
    ptx::BarrierInit(&shared.values_full[s], 1);
    ptx::BarrierInit(&shared.keys_empty[s], kReaders);
    ptx::BarrierInit(&shared.values_empty[s], kReaders);
  }
  ptx::FenceBarrierInit();
}

// One thread.
template <int kQk, int kV>
__device__ __forceinline__ void ProduceForward(const HopperForwardParams& p, const RowBlock& block,
                                               const CUtensorMap& q_map, const CUtensorMap& k_map,
                                               const CUtensorMap& v_map,
                                               ForwardShared<kQk, kV>& shared) {
  using Shared = ForwardShared<kQk, kV>;
  ptx::BarrierExpect(&shared.queries_full, sizeof(shared.queries));
#pragma unroll
  for (int wg = 0; wg < kConsumers; ++wg)
    LoadTile<kQk, kTileRows>(shared.queries[wg], &q_map, block.head * p.q_head,
                             block.begin + block.first + wg * kTileRows, &shared.queries_full);
  const int k_column = block.kv_head * p.k_head, v_column = block.kv_head * p.v_head;
  int row = block.begin + block.first_key;
  PipelineState ring;
  for (int i = 0; i < block.tiles; ++i, row += Shared::kKeys, ring.Next(Shared::kStages)) {
    const int s = ring.stage;
    Await(&shared.keys_empty[s], ring.parity ^ 1);
    ptx::BarrierExpect(&shared.keys_full[s], sizeof(shared.keys[0]));
    LoadTile<kQk, Shared::kKeys>(shared.keys[s], &k_map, k_column, row, &shared.keys_full[s]);
    Await(&shared.values_empty[s], ring.parity ^ 1);
    ptx::BarrierExpect(&shared.values_full[s], sizeof(shared.values[0]));
    LoadTile<kV, Shared::kKeys>(shared.values[s], &v_map, v_column, row, &shared.values_full[s]);
  }
}

// A row's maximum (of scores · scale · log2 e) rises only if a score exceeds it by more than this.
// So most tiles need no rescale, and probabilities are at most 2^8, which bfloat16 and float32 hold
// with the same relative precision. FlashAttention-4 rescales in this way.
constexpr float kMaximumSlack = 8.0f;

// A consumer warpgroup. The columns of thread_ are keys, or elements of the output.
template <int kQk, int kV>
class ForwardConsumer {
  using Shared = ForwardShared<kQk, kV>;
  static constexpr int kKeys = Shared::kKeys;

 public:
  __device__ __forceinline__ ForwardConsumer(const HopperForwardParams& p, const RowBlock& block,
                                             Shared& shared, int warpgroup)
      : p_(p),
        block_(block),
        shared_(shared),
        thread_(&shared, block.first, warpgroup),
        window_(WindowOf(p.shape)),
        scale_(p.shape.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
#pragma unroll
    for (float& sum : sums_) sum = 0.0f;
    Await(thread_.memory.After(offsetof(Shared, queries_full)), 0);
    Await(KeysFull(ring_), ring_.parity);
    ptx::WgmmaFence();
    StartRows<kQk, kKeys>(Queries(), Keys(ring_), scores_);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(scores_);
    ptx::BarrierArriveWarp(KeysEmpty(ring_));
    int key = block_.first_key;
    float shrink[2];
    ToProbabilities<true>(key, shrink);
    fragments_.Pack(scores_);
    Await(ValuesFull(ring_), ring_.parity);
    for (int i = 1; i < block_.tiles; ++i) {
      key += kKeys;
      PipelineState next = ring_;
      next.Next(Shared::kStages);
      Await(KeysFull(next), next.parity);
      if (AllVisible(thread_.first, kTileRows, key, kKeys, p_.shape.window)) {
        Step<false>(next, key, shrink);
      } else {
        Step<true>(next, key, shrink);
      }
      ptx::BarrierArriveWarp(KeysEmpty(next));
      ptx::BarrierArriveWarp(ValuesEmpty(ring_));
      Rescale(shrink);
      fragments_.Pack(scores_);
      ring_ = next;
    }
    // Only the last tile may contain rows of the next sequence.
    if (key + kKeys > block_.rows) {
      ClearTail<kV, kKeys>(shared_.values[ring_.stage], block_.rows - key);
      FinishClear(thread_.warpgroup);
    }
    ptx::PinRegisters(sums_);
    fragments_.Pin();
    ptx::WgmmaFence();
    StartColumns<kV, kKeys>(fragments_, Values(ring_), sums_);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums_);
    Store();
  }

 private:
  // Multiplies the probabilities of the tile in ring_, and computes those of the tile in `next`. No
  // branches, because they would serialize the products in flight (ptxas C7514).
  template <bool kMasked>
  __device__ __forceinline__ void Step(const PipelineState& next, int key, float (&shrink)[2]) {
    ptx::PinRegisters(sums_);
    fragments_.Pin();
    ptx::WgmmaFence();
    StartRows<kQk, kKeys>(Queries(), Keys(next), scores_);
    StartColumns<kV, kKeys>(fragments_, Values(ring_), sums_);
    ptx::WgmmaWait<1>();
    ptx::PinRegisters(scores_);
    ToProbabilities<kMasked>(key, shrink);
    // Await is a loop, and the compiler does not move the softmax across it. Without a loop here,
    // it would move the softmax after the wait for all products.
    Await(ValuesFull(next), next.parity);
    ptx::WgmmaWait<0>();
    ptx::PinRegisters(sums_);
  }

  // Turns the scores of keys from `key` on into probabilities relative to the row's maximum.
  // `shrink`: factors of earlier sums.
  template <bool kMasked>
  __device__ __forceinline__ void ToProbabilities(int key, float (&shrink)[2]) {
    if constexpr (kMasked) {
      const int last = thread_.row - key - thread_.column;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 8 * n + i % 2, last_of_row = last + i / 2 * 8;
          if (at > last_of_row || at <= last_of_row - window_) scores_[4 * n + i] = -INFINITY;
        }
      }
    }
    float tops[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};  // independent chains
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) tops[i] = fmaxf(tops[i], scores_[4 * n + i]);
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = fmaxf(tops[2 * half], tops[2 * half + 1]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale_;
      if (!(top > largest_[half] + kMaximumSlack)) top = largest_[half];
      base[half] = top == -INFINITY ? 0.0f : top;  // no visible key yet
      shrink[half] = ptx::Exp2(largest_[half] - base[half]);
      largest_[half] = top;
    }
    float totals[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores_[4 * n + i];
        x = ptx::Exp2(fmaf(x, scale_, -base[i / 2]));
        totals[i] += x;
      }
    }
    // The four lanes of a row add their totals at the end.
#pragma unroll
    for (int half = 0; half < 2; ++half)
      total_[half] = total_[half] * shrink[half] + (totals[2 * half] + totals[2 * half + 1]);
  }

  __device__ __forceinline__ void Rescale(const float (&shrink)[2]) {
    if (__all_sync(~0u, shrink[0] == 1.0f && shrink[1] == 1.0f)) return;
#pragma unroll
    for (int n = 0; n < kV / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[4 * n + i] *= shrink[i / 2];
  }

  __device__ __forceinline__ void Store() {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = total_[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      factors[half] = 1.0f / total;
      const int row = thread_.row + 8 * half;
      if (thread_.column == 0 && row < block_.rows)
        p_.log_sums[block_.head * p_.shape.rows + block_.begin + row] =
            (largest_[half] + log2f(total)) * kLn2;
    }
    SyncWarpgroup(thread_.warpgroup);  // all warps have read the queries
    StoreTile<kV>(shared_.queries[thread_.warpgroup], sums_, factors[0], factors[1], p_.out,
                  block_.head, block_.begin, thread_.first, block_.rows);
  }

  __device__ __forceinline__ ptx::SharedAddr KeysFull(const PipelineState& at) const {
    return thread_.Barrier(offsetof(Shared, keys_full), at);
  }
  __device__ __forceinline__ ptx::SharedAddr KeysEmpty(const PipelineState& at) const {
    return thread_.Barrier(offsetof(Shared, keys_empty), at);
  }
  __device__ __forceinline__ ptx::SharedAddr ValuesFull(const PipelineState& at) const {
    return thread_.Barrier(offsetof(Shared, values_full), at);
  }
  __device__ __forceinline__ ptx::SharedAddr ValuesEmpty(const PipelineState& at) const {
    return thread_.Barrier(offsetof(Shared, values_empty), at);
  }
  __device__ __forceinline__ uint32_t Queries() const {
    return thread_.OwnTile(offsetof(Shared, queries), sizeof(shared_.queries[0]));
  }
  __device__ __forceinline__ uint32_t Keys(const PipelineState& at) const {
    return thread_.Tile(offsetof(Shared, keys), sizeof(shared_.keys[0]), at);
  }
  __device__ __forceinline__ uint32_t Values(const PipelineState& at) const {
    return thread_.Tile(offsetof(Shared, values), sizeof(shared_.values[0]), at);
  }

  const HopperForwardParams& p_;
  const RowBlock& block_;
  Shared& shared_;
  const ConsumerThread thread_;
  const int window_;
  const float scale_;
  PipelineState ring_;

  float scores_[kKeys / 2];
  float sums_[kV / 2];
  Fragments<kKeys> fragments_;  // probabilities of the tile in ring_
  // Of the thread's two rows: the reference of the probabilities and their sum.
  float largest_[2] = {-INFINITY, -INFINITY}, total_[2] = {0, 0};
};

#endif

template <int kQk, int kV>
__global__ void __launch_bounds__(kHopperThreads, 1)
    HopperAttentionKernel(const __grid_constant__ HopperForwardParams p,
                          const __grid_constant__ CUtensorMap q_map,
                          const __grid_constant__ CUtensorMap k_map,
                          const __grid_constant__ CUtensorMap v_map) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = ForwardShared<kQk, kV>;
  extern __shared__ __align__(1024) uint8_t memory[];
  static_assert(sizeof(Shared) <= 227 * 1024);
  auto& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) PrefetchMaps(q_map, k_map, v_map);
  const RowBlock block = RowBlockOf<Shared::kKeys>(p.shape, p.order);
  if (!block.IsReal()) return;
  if (threadIdx.x == 0) InitForwardBarriers(shared);
  __syncthreads();
  const int warpgroup = Uniform(static_cast<int>(threadIdx.x) / 128);
  if (warpgroup == kConsumers) {
    ptx::DeallocateRegisters<kProducerRegisters>();
    if (threadIdx.x == kConsumers * 128)
      ProduceForward<kQk, kV>(p, block, q_map, k_map, v_map, shared);
  } else {
    ptx::AllocateRegisters<kConsumerRegisters>();
    ForwardConsumer<kQk, kV>(p, block, shared, warpgroup).Run();
  }
#endif
}

template <int kQk, int kV>
void StartForward(const AttentionShape& s, const HeadArray& q, const HeadArray& k,
                  const HeadArray& v, const HopperForwardParams& p, Stream stream) {
  using Shared = ForwardShared<kQk, kV>;
  static switchyard::cuda::SharedMemoryOptIn setup;
  int device = 0;
  switchyard::cuda::Check(cudaGetDevice(&device), "reading the current GPU");
  switchyard::cuda::Check(setup.On(device, HopperAttentionKernel<kQk, kV>, sizeof(Shared)),
                          "shared memory of attention");
  Launch("attention", HopperAttentionKernel<kQk, kV>, GridOf(p.order), kHopperThreads,
         sizeof(Shared), stream, p, MapOfHeads(q, s.rows, s.heads, kQk, kTileRows),
         MapOfHeads(k, s.rows, s.kv_heads, kQk, Shared::kKeys),
         MapOfHeads(v, s.rows, s.kv_heads, kV, Shared::kKeys));
}

}  // namespace

bool HasTensorMap(const HeadArray& a, int64_t heads, int64_t dim) {
  const int64_t columns = (heads - 1) * a.head + dim;
  return a.row >= columns && columns <= INT32_MAX;
}

bool UsesHopperAttention(const AttentionShape& s) {
  // Blocks are counted in 32 bits.
  const int64_t blocks = CeilDiv(s.longest, kBlockRows) * s.heads * s.sequences;
  return s.tiles == AttentionTiles::kHopper && s.rows > 0 && blocks > 0 && blocks <= INT32_MAX &&
         switchyard::cuda::IsHopper();
}

void StartHopperAttention(const AttentionShape& s, const HeadArray& q, const HeadArray& k,
                          const HeadArray& v, const MutableHeadArray& out, float* log_sums,
                          Stream stream) {
  const int64_t bytes = 2 * (s.qk_dim + s.v_dim) * s.kv_heads / s.heads;
  const HopperForwardParams p = {.shape = s,
                                 .order = OrderOf(s, s.heads, std::max<int64_t>(bytes, 1)),
                                 .q_head = static_cast<int>(q.head),
                                 .k_head = static_cast<int>(k.head),
                                 .v_head = static_cast<int>(v.head),
                                 .out = out,
                                 .log_sums = log_sums};
  if (s.qk_dim == 64) return StartForward<64, 64>(s, q, k, v, p, stream);
  if (s.qk_dim == 128) return StartForward<128, 128>(s, q, k, v, p, stream);
  StartForward<192, 128>(s, q, k, v, p, stream);
}

}  // namespace switchyard::train::gpu
