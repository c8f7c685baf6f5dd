// Copies of queries, keys and values to shared memory for tensor core attention.
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_ptx.cuh"
#include "kernels/cuda/attention/attention_tile_shape.cuh"
#include "kernels/cuda/device/ptx.cuh"

namespace switchyard::cuda {

// Copies for one work item. All threads of the thread block call the functions together.
template <typename Shape>
class TileLoader {
 public:
  __device__ TileLoader(const TiledAttention& p, const AttentionWorkItem& unit,
                        const TileKeys& keys, char* shared)
      : p_(p),
        unit_(unit),
        keys_(keys),
        shared_(ptx::SharedAddress(shared)),
        shared_bytes_(shared) {}

  // The cache slot of this thread's key of a key block; −1 if the key is not visible to the tile,
  // or the block is beyond the last one.
  __device__ int SlotOf(int block, int last) const {
    const SequenceTable& table = p_.launch.table;
    const int key = block * Shape::kKeys + threadIdx.x;
    if (key < keys_.begin || key >= keys_.end || block > last) return -1;
    const int page = static_cast<unsigned>(key) / static_cast<unsigned>(table.page_size);
    return table.pages[int64_t{unit_.sequence} * table.max_pages + page] * table.page_size +
           (key - page * table.page_size);
  }
  // In shared memory: the cache slots of the key block in a stage, one per key.
  __device__ int* Slots(int stage) const {
    return reinterpret_cast<int*>(shared_bytes_ + Shape::kSlotsAt) + stage * Shape::kKeys;
  }

  // Issues the copies of the keys and values of a stage's block, with zeros for keys whose slot is
  // −1. Branch-free, because wgmma in flight does not allow branches. Eight threads copy one row of
  // a panel.
  __device__ void LoadKeys(int stage) {
    constexpr int kRowsAtOnce = Shape::kThreads / 8;
    const int64_t stride = int64_t{p_.launch.kv_heads} * Shape::kQkDim;
    const int64_t at = int64_t{unit_.kv_head} * Shape::kQkDim + threadIdx.x % 8 * 8;
    const __nv_bfloat16* k = static_cast<const __nv_bfloat16*>(p_.launch.k) + at;
    const __nv_bfloat16* v = static_cast<const __nv_bfloat16*>(p_.launch.v) + at;
    const uint32_t to = shared_ + Shape::kQBytes + stage * Shape::kStageBytes;
    const int* slots = Slots(stage);
#pragma unroll
    for (int i = 0; i < Shape::kKeys / kRowsAtOnce; ++i) {
      const int row = threadIdx.x / 8 + i * kRowsAtOnce, slot = slots[row];
      const int64_t from = max(slot, 0) * stride;
      const uint32_t row_to = to + SwizzledOffset<Shape::kKeys>(row, threadIdx.x % 8);
#pragma unroll
      for (int panel = 0; panel < Shape::kQkDim / 64; ++panel) {
        const uint32_t panel_to = row_to + panel * (Shape::kKeys * 128);
        ptx::CopyAsync16(panel_to, k + from + 64 * panel, slot >= 0);
        if constexpr (!Shape::kLatent)
          ptx::CopyAsync16(panel_to + Shape::kKBytes, v + from + 64 * panel, slot >= 0);
      }
    }
    ptx::CommitCopies();
  }

  // Loads the tile's queries as bfloat16; zeros beyond the last row.
  __device__ void LoadQueries() {
    constexpr int kPieces = Shape::kQkDim / 8;
    const int group = p_.schedule.group;
    const int row_begin = p_.launch.table.row_begin[unit_.sequence];
    constexpr int kCount = Shape::kRows * kPieces;
    constexpr int kInFlight = (kCount + Shape::kThreads - 1) / Shape::kThreads < 6
                                  ? (kCount + Shape::kThreads - 1) / Shape::kThreads
                                  : 6;  // loads in flight
    for (int begin = threadIdx.x; begin < kCount; begin += kInFlight * Shape::kThreads) {
      float4 q[kInFlight][2] = {};
      uint4 rounded[kInFlight] = {};
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = begin + i * Shape::kThreads, row = at / kPieces, piece = at - row * kPieces;
        const int flat = keys_.begin_row + row;
        if (row >= Shape::kRows || flat >= keys_.end_row) continue;
        const int query = flat / group, head = unit_.kv_head * group + flat - query * group;
        const float4* from = reinterpret_cast<const float4*>(
            p_.launch.q + int64_t{row_begin + query} * p_.launch.ldq +
            int64_t{head} * Shape::kQkDim);
        if (p_.launch.bf16_queries) {
          rounded[i] = reinterpret_cast<const uint4*>(from)[piece];
        } else {
          q[i][0] = from[2 * piece];
          q[i][1] = from[2 * piece + 1];
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const int at = begin + i * Shape::kThreads, row = at / kPieces, piece = at - row * kPieces;
        if (row >= Shape::kRows) break;
        const auto& [a, b] = q[i];
        if (!p_.launch.bf16_queries)
          rounded[i] = {PackBf16(a.x, a.y), PackBf16(a.z, a.w), PackBf16(b.x, b.y),
                        PackBf16(b.z, b.w)};
        *reinterpret_cast<uint4*>(shared_bytes_ + SwizzledOffset<Shape::kRows>(row, piece)) =
            rounded[i];
      }
    }
  }

 private:
  const TiledAttention& p_;
  const AttentionWorkItem& unit_;
  const TileKeys& keys_;
  const uint32_t shared_;
  char* const shared_bytes_;
};

}  // namespace switchyard::cuda
