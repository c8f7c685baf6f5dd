#include "comm/device/cuda/collectives.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/nccl_library.h"
#include "comm/device/cuda/peer_collectives.h"
#include "core/log.h"

namespace switchyard::cuda {
namespace {

// Large sums through NCCL, the rest over peer memory. On four H200s NCCL's all-reduce is ahead from
// 16 MB on (94 to 105 µs), its reduce-scatter, of a reduce for each part, from about 40 MB on (16
// MB: 91 to 62 µs, 64 MB: 198 to 229) and its all-gather never (64 MB: 227 to 190).
class MixedCollectives : public Collectives {
 public:
  MixedCollectives(std::unique_ptr<Collectives> peer, std::unique_ptr<Collectives> nccl,
                   size_t max_peer_bytes)
      : peer_(std::move(peer)), nccl_(std::move(nccl)), max_peer_bytes_(max_peer_bytes) {}

  int rank() const override { return peer_->rank(); }
  int size() const override { return peer_->size(); }

  void AllReduceSum(float* data, size_t count) override {
    (count * sizeof(float) <= max_peer_bytes_ ? peer_ : nccl_)->AllReduceSum(data, count);
  }
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override {
    peer_->AllGatherV(in, out, counts);
  }
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override {
    const size_t floats = std::reduce(counts.begin(), counts.end());
    (floats * sizeof(float) / 4 <= max_peer_bytes_ ? peer_ : nccl_)
        ->ReduceScatterV(in, out, counts);
  }

 private:
  std::unique_ptr<Collectives> peer_, nccl_;
  size_t max_peer_bytes_;
};

// What ranks tell one another before they use NCCL.
struct NcclCard {
  bool usable = false;
  NcclUniqueId id;  // of the group whose first rank this is
};

// Null where any rank of the world lacks what it takes: all have to do the same.
std::unique_ptr<Collectives> MakeNccl(RankComm& comm, PeerMemory& memory,
                                      const std::vector<int>& group, const std::string& name,
                                      cudaStream_t stream) {
  const NcclLibrary& nccl = NcclLibrary::Get();
  NcclCard mine = {.usable = nccl.missing.empty() && memory.OneGpuEach(group)};
  if (mine.usable && group.size() > 1 && group.front() == memory.rank())
    mine.usable = nccl.GetUniqueId(&mine.id) == kNcclSuccess;
  std::vector<NcclCard> cards(static_cast<size_t>(memory.world()));
  comm.tp->AllGather(&mine, cards.data(), sizeof mine);
  if (!std::ranges::all_of(cards, &NcclCard::usable)) {
    if (memory.rank() == 0 && name == "tp") {
      LOG_INFO("sums and gathers of all sizes go over peer memory: {}",
               !nccl.missing.empty() ? nccl.missing
                                     : "NCCL is not usable by all ranks, or ranks share a GPU");
    }
    return nullptr;
  }
  if (group.size() == 1) return nullptr;
  const auto own = std::ranges::find(group, memory.rank());
  return std::make_unique<NcclGroup>(
      nccl, cards[static_cast<size_t>(group.front())].id, static_cast<int>(own - group.begin()),
      static_cast<int>(group.size()), name, stream, memory.timeout());
}

}  // namespace

std::unique_ptr<Collectives> MakeCollectives(RankComm& comm, PeerMemory& memory,
                                             std::vector<int> group, const std::string& name,
                                             cudaStream_t stream,
                                             const CollectiveOptions& options) {
  auto peer = std::make_unique<PeerCollectives>(memory, group, stream);
  // It takes memory of the GPU, even where nothing comes to it.
  const bool wants_nccl =
      !options.custom_all_reduce || options.max_custom_bytes < std::numeric_limits<size_t>::max();
  auto nccl = wants_nccl ? MakeNccl(comm, memory, group, name, stream) : nullptr;
  comm.tp->Barrier("start of collectives");
  if (nccl == nullptr) return peer;
  if (!options.custom_all_reduce) return nccl;
  return std::make_unique<MixedCollectives>(std::move(peer), std::move(nccl),
                                            options.max_custom_bytes);
}

size_t CollectiveBytes(const CollectiveOptions&, int members) {
  return members > 1 ? MemberBytes(members) + 256 : 0;  // 256: alignment
}

}  // namespace switchyard::cuda
