#include "comm/device/cuda/collectives.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "comm/device/cuda/nccl_group.h"
#include "comm/device/cuda/nccl_library.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard::cuda {
namespace {

// Large reductions use NCCL, everything else peer memory. Measured on four H200s:
//
//                   NCCL is faster     times of NCCL and of peer memory
//   all-reduce      from 16 MB         16 MB: 94 and 105 µs
//   reduce-scatter  from about 40 MB   16 MB: 91 and 62 µs; 64 MB: 198 and 229 µs
//   all-gather      never              64 MB: 227 and 190 µs
//
// With NCCL, a reduce-scatter runs one ncclReduce for each part, because parts differ in length.
class MixedCollectives : public Collectives {
 public:
  MixedCollectives(std::unique_ptr<Collectives> peer, std::shared_ptr<NcclGroup> nccl,
                   size_t max_peer_bytes)
      : peer_(std::move(peer)), nccl_(std::move(nccl)), max_peer_bytes_(max_peer_bytes) {}

  int rank() const override { return peer_->rank(); }
  int size() const override { return peer_->size(); }

  void AllReduceSum(float* data, size_t count) override {
    For(count * sizeof(float)).AllReduceSum(data, count);
  }
  void AllGatherV(const void* in, void* out, std::span<const size_t> counts) override {
    peer_->AllGatherV(in, out, counts);
  }
  void ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) override {
    const size_t floats = std::reduce(counts.begin(), counts.end());
    For(floats * sizeof(float) / 4).ReduceScatterV(in, out, counts);
  }

 private:
  Collectives& For(size_t bytes) { return bytes <= max_peer_bytes_ ? *peer_ : *nccl_; }

  std::unique_ptr<Collectives> peer_;
  std::shared_ptr<NcclGroup> nccl_;
  size_t max_peer_bytes_;
};

// Exchanged by all ranks at setup, so that all choose the same transport.
struct GroupSetup {
  bool one_host = false, nccl = false;  // the group is on one host; this rank can use NCCL
  NcclUniqueId id;                      // set by the first rank of each group
};

std::vector<GroupSetup> ExchangeGroupSetup(RankComm& comm, const PeerMemory& memory,
                                           const std::vector<int>& group, bool nccl_requested,
                                           bool shared) {
  GroupSetup mine = {.one_host = memory.OnThisHost(group)};
  // NCCL allocates GPU memory, so it is loaded only if it may be used.
  if (nccl_requested || !mine.one_host) {
    const NcclLibrary& nccl = NcclLibrary::Get();
    mine.nccl = nccl.missing.empty() && (nccl.shares_gpus || memory.HasDistinctGpus(group));
    if (mine.nccl && !shared && group.size() > 1 && group.front() == memory.rank())
      mine.nccl = nccl.GetUniqueId(&mine.id) == kNcclSuccess;
  }
  std::vector<GroupSetup> cards(static_cast<size_t>(memory.world()));
  comm.tp->AllGather(&mine, cards.data(), sizeof mine);
  return cards;
}

// The reason why NCCL is unavailable: this rank's own reason if there is one, else the possible
// reasons.
std::string WhyNoNccl() {
  const std::string& missing = NcclLibrary::Get().missing;
  return missing.empty() ? "NCCL is not usable by all ranks, or ranks share a GPU" : missing;
}

[[noreturn]] void ThrowNeedsNccl(std::span<const GroupSetup> cards) {
  const auto lacks = std::ranges::find(cards, false, &GroupSetup::nccl);
  throw Error(ErrorKind::kResource,
              fmt::format("ranks on several hosts need NCCL to communicate between GPUs, which "
                          "rank {} cannot use: {}",
                          lacks - cards.begin(), WhyNoNccl()),
              "install NCCL 2.28 or newer (libnccl.so.2) on every host and give each rank a GPU");
}

}  // namespace

std::shared_ptr<NcclGroup> SharedNccl::Find(std::span<const int> members) const {
  for (const auto& [group, nccl] : made_)
    if (std::ranges::equal(group, members)) return nccl.lock();
  return nullptr;
}

void SharedNccl::Add(std::span<const int> members, std::shared_ptr<NcclGroup> group) {
  made_.emplace_back(std::vector(members.begin(), members.end()), std::move(group));
}

std::unique_ptr<Collectives> MakeCollectives(RankComm& comm, PeerMemory& memory,
                                             std::vector<int> group, const std::string& name,
                                             cudaStream_t stream,
                                             const CollectiveOptions& options) {
  // The start of NCCL would make the pause of a restart longer. Two members get the same bits
  // without it, because the sum of two numbers does not depend on their order.
  const bool quick = options.custom_all_reduce && comm.memory->epoch() > 1 && group.size() <= 2;
  const bool nccl_requested =
      !quick &&
      (!options.custom_all_reduce || options.max_custom_bytes < std::numeric_limits<size_t>::max());
  std::shared_ptr<NcclGroup> nccl;
  std::vector<int> all(static_cast<size_t>(memory.world()));
  std::iota(all.begin(), all.end(), 0);
  if (options.shared && memory.OnThisHost(all)) nccl = options.shared->Find(group);
  const std::vector<GroupSetup> cards =
      ExchangeGroupSetup(comm, memory, group, nccl_requested, nccl != nullptr);
  const bool one_host = std::ranges::all_of(cards, &GroupSetup::one_host);
  const bool has_nccl = std::ranges::all_of(cards, &GroupSetup::nccl);
  if (!one_host && !has_nccl) ThrowNeedsNccl(cards);
  if (nccl_requested && !has_nccl && memory.rank() == 0 && name == "tp")
    LOG_INFO("collectives of all sizes use peer memory: {}", WhyNoNccl());

  std::unique_ptr<Collectives> peer;
  // A group of one member has PeerCollectives on any number of hosts; it needs no peer memory.
  if (one_host || group.size() == 1)
    peer = std::make_unique<PeerCollectives>(memory, group, stream);
  const bool mixed = peer && options.custom_all_reduce;
  if (group.size() == 1 || (one_host && !(nccl_requested && has_nccl))) {
    comm.tp->Barrier("collectives setup");
    return peer;
  }
  std::unique_ptr<NcclGroup> own;
  if (!mixed || !nccl) {
    const auto self = std::ranges::find(group, memory.rank());
    own = std::make_unique<NcclGroup>(
        NcclLibrary::Get(), cards[static_cast<size_t>(group.front())].id,
        static_cast<int>(self - group.begin()), static_cast<int>(group.size()), name, stream,
        options.watch ? options.watch : std::make_shared<NcclWatch>(comm, memory.timeout()));
  }
  comm.tp->Barrier("collectives setup");
  if (!mixed) return own;
  if (own) {
    nccl = std::move(own);
    if (options.shared) options.shared->Add(group, nccl);
  }
  return std::make_unique<MixedCollectives>(std::move(peer), std::move(nccl),
                                            options.max_custom_bytes);
}

size_t CollectiveBytes(const CollectiveOptions&, int members) {
  return members > 1 ? MemberBytes(members) + 256 : 0;  // 256: alignment
}

}  // namespace switchyard::cuda
