// Collectives of one group of ranks over symmetric memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/device/symmetric_memory.h"
#include "comm/mesh.h"

namespace switchyard {

// A group's collectives. Every member calls the same operations in the same order; ranks outside do
// not take part. Results do not depend on timing: sums are taken in group order, so every member
// gets the same bits. Messages larger than the staging buffers are split into rounds. In a group of
// one, an operation only copies its input to the output, unless they are the same memory. Used by
// the rank's thread only.
class Communicator : public Collectives {
 public:
  // Default size of the staging buffers in bytes. They fit the L2 cache of a core, because a peer's
  // data is read right after it is written.
  static constexpr size_t kStagingBytes = size_t{1} << 20;

  // Allocates staging buffers symmetrically. So every rank of the world constructs communicators of
  // the same kinds in the same order, each for its own group of that kind. `name` is used in error
  // messages: "tp", "ep", "moe-tp", "attn-tp", "pp", "world".
  Communicator(SymmetricMemory& memory, std::vector<int> group, const std::string& name,
               size_t staging_bytes = kStagingBytes);
  ~Communicator() override;

  int rank() const override;  // rank of this member in the group
  int size() const override;

  void AllReduceSum(float* data, size_t count) override;  // in place; float32, in group order
  // out [size, bytes_per_rank]: member r's bytes at r · bytes_per_rank. `in` may be this rank's
  // segment of `out`.
  void AllGather(const void* in, void* out, size_t bytes_per_rank);
  // Members contribute counts[r] bytes each, concatenated in `out` in order of rank.
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override;
  // `in` has Σ counts floats: part 0, part 1, and so on. `out` has counts[rank()] floats: the sum
  // of part `rank()` over all members, in group order. Counts are the same on all members and may
  // be zero. `out` may be part `rank()` of `in` itself; otherwise `in` and `out` do not overlap.
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override;
  // ReduceScatterV with count_per_rank floats in each part.
  void ReduceScatterSum(const float* in, float* out, size_t count_per_rank);
  // Members wait without a deadline if `idle`.
  void Barrier(const char* stage, bool idle = false);

  // Broadcasts member 0's bytes. Other members wait without a deadline if `idle`.
  std::string Broadcast(const std::string& from_leader, bool idle = false);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A rank's communicators, one for each kind of group, constructed in the same order on every rank.
struct RankComm {
  // Bytes of a rank's arena that the communicators allocate.
  static size_t BytesPerRank(const MeshShape& shape);

  Mesh mesh;
  std::shared_ptr<SymmetricMemory> memory;
  std::unique_ptr<Communicator> tp, ep, moe_tp, attn_tp;
  // With several pipeline stages: all ranks, and the ranks with the same place in each stage. Else
  // null.
  std::unique_ptr<Communicator> world, pp;

  // All ranks of the engine.
  Communicator& all() const { return world ? *world : *tp; }

  // `shape`: the layout of the active ranks of the arena's epoch. `rank`: in the arena.
  static std::unique_ptr<RankComm> Create(std::shared_ptr<SharedArena> arena,
                                          const MeshShape& shape, int rank,
                                          SymmetricMemory::Options options = {});
  // The same in a memory that other objects of the rank use too. Every rank calls it at the same
  // place in the order of its allocations.
  static std::unique_ptr<RankComm> In(std::shared_ptr<SymmetricMemory> memory,
                                      const MeshShape& shape);
};

// The communicators of `comm` as RankGroups, which are collectives of host memory.
inline RankGroups Groups(RankComm& comm) {
  return {comm.tp.get(), comm.ep.get(), comm.moe_tp.get(), comm.attn_tp.get()};
}

// Runs body(rank) on `world` threads over one arena and returns when all have finished. Serves
// tests and the offline engine. If a body throws, the other ranks are aborted and the first error
// is rethrown.
void RunRankThreads(int world, size_t bytes_per_rank,
                    const std::function<void(int rank, std::shared_ptr<SharedArena>)>& body);

}  // namespace switchyard
