// Interface of the collectives of one group of ranks, for memory of any device.
#pragma once

#include <cstddef>
#include <span>

namespace switchyard {

// Every member calls the same operations in the same order; ranks outside do not take part. Memory
// arguments are on the object's device. On GPUs, operations are enqueued and return before they
// complete. In a group of one, an operation only copies its input to the output, unless they are
// the same memory. Used by the rank's thread only.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;  // rank of this member in the group
  virtual int size() const = 0;

  virtual void AllReduceSum(float* data, size_t count) = 0;  // in place
  // Members contribute counts[r] bytes each, concatenated in `out` in order of rank. `in` may be
  // this rank's segment of `out`.
  virtual void AllGatherV(const void* in, void* out, std::span<const size_t> counts) = 0;
  // `in` has Σ counts floats: part 0, part 1, and so on. `out` has counts[rank()] floats: the sum
  // of part `rank()` over all members. Counts are the same on all members and may be zero. `out`
  // may be part `rank()` of `in` itself; otherwise `in` and `out` do not overlap.
  virtual void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) = 0;
};

// The collectives of a rank's groups (comm/mesh.h). Does not own them.
struct RankGroups {
  Collectives* tp = nullptr;  // all ranks of the world
  Collectives* ep = nullptr;
  Collectives* moe_tp = nullptr;
  Collectives* attn_tp = nullptr;
};

}  // namespace switchyard
