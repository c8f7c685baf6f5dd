#include "comm/device/communicator.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/device/ordered_sum.h"
#include "comm/device/staged_rounds.h"
#include "core/check.h"

namespace switchyard {
namespace {

// One-shot all-reduce up to this size: every member sends its whole message to every peer and adds
// all messages, in one exchange. Larger messages use two-shot: each member reduces one part and
// sends it to all, in two exchanges. In a group of 4, two-shot copies and adds 3.25 times the
// message instead of 7 times. A group of 2 always uses one-shot: two-shot would copy and add 2.5
// instead of 3 times the message, which saves less time than the second exchange costs.
constexpr size_t kOneShotBytes = 4096;

// The part of `whole` that is sent in the round that starts at `done`; empty past the end of
// `whole`.
template <typename T>
std::span<T> Piece(std::span<T> whole, size_t done, size_t slot) {
  const size_t begin = std::min(done, whole.size());
  return whole.subspan(begin, std::min(slot, whole.size() - begin));
}

}  // namespace

// The names of the stages are built only once, because collectives run several times for each
// token.
struct Communicator::Impl {
  std::string all_reduce, all_gather, reduce_scatter, broadcast;
  int rank = 0;
  int size = 1;
  std::optional<StagedRounds> rounds;  // none in a group of one
  // Scratch arrays [members], allocated once.
  std::vector<const float*> sources;          // inputs of a sum
  std::vector<std::span<std::byte>> places;   // segments of an all-gather's output
  std::vector<std::span<const float>> parts;  // parts of a reduce-scatter's input
  std::vector<size_t> equal_counts;

  void SendToAll(std::span<const std::byte> bytes);
  void ReduceOneShot(float* data, size_t count);
  void ReduceInParts(float* data, size_t count);
  void SumInboxes(const float* mine, float* out, size_t count);
};

Communicator::Communicator(SymmetricMemory& memory, std::vector<int> group, const std::string& name,
                           size_t staging_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->all_reduce = name + " all-reduce";
  impl_->all_gather = name + " all-gather";
  impl_->reduce_scatter = name + " reduce-scatter";
  impl_->broadcast = name + " broadcast";
  impl_->size = static_cast<int>(group.size());
  impl_->sources.resize(group.size());
  impl_->places.resize(group.size());
  impl_->parts.resize(group.size());
  impl_->equal_counts.resize(group.size());
  if (group.size() > 1) {
    impl_->rounds.emplace(memory, std::move(group), staging_bytes);
    impl_->rank = impl_->rounds->rank();
  }
}

Communicator::~Communicator() = default;

int Communicator::rank() const { return impl_->rank; }
int Communicator::size() const { return impl_->size; }

void Communicator::Impl::SendToAll(std::span<const std::byte> bytes) {
  for (int k = 0; k < rounds->num_peers(); ++k) {
    const int peer = rounds->Peer(k);
    std::byte* slot = rounds->Outbox(peer);
    if (!bytes.empty()) std::memcpy(slot, bytes.data(), bytes.size());
    rounds->Post(peer, bytes.size());
  }
}

// Sums the messages that all members sent in this round. `mine`: this member's own message.
void Communicator::Impl::SumInboxes(const float* mine, float* out, size_t count) {
  for (int r = 0; r < size; ++r) {
    sources[r] = r == rank ? mine : reinterpret_cast<const float*>(rounds->Inbox(r));
  }
  SumInOrder(sources, out, count);
}

void Communicator::Impl::ReduceOneShot(float* data, size_t count) {
  rounds->Begin(all_reduce.c_str());
  SendToAll(std::as_bytes(std::span(data, count)));
  SumInboxes(data, data, count);
}

// Two-shot all-reduce. `data` is divided into one part per member; the last parts may be shorter or
// empty. Each member reduces the part with the index of its rank and sends the sum to all.
void Communicator::Impl::ReduceInParts(float* data, size_t count) {
  const size_t members = static_cast<size_t>(size);
  const size_t part = ((count + members - 1) / members + 15) / 16 * 16;  // whole cache lines
  const auto begin = [&](int r) { return std::min(count, static_cast<size_t>(r) * part); };
  const auto length = [&](int r) { return begin(r + 1) - begin(r); };

  rounds->Begin(all_reduce.c_str());
  for (int k = 0; k < rounds->num_peers(); ++k) {
    const int peer = rounds->Peer(k);
    const size_t bytes = length(peer) * sizeof(float);
    std::memcpy(rounds->Outbox(peer), data + begin(peer), bytes);
    rounds->Post(peer, bytes);
  }
  float* mine = data + begin(rank);
  SumInboxes(mine, mine, length(rank));

  rounds->Begin(all_reduce.c_str());
  SendToAll(std::as_bytes(std::span(mine, length(rank))));
  for (int k = 0; k < rounds->num_peers(); ++k) {
    const int peer = rounds->Peer(k);
    std::memcpy(data + begin(peer), rounds->Inbox(peer), length(peer) * sizeof(float));
  }
}

void Communicator::AllReduceSum(float* data, size_t count) {
  Impl& my = *impl_;
  if (my.size == 1) return;
  const bool one_shot = my.size == 2 || count * sizeof(float) <= kOneShotBytes;
  const size_t slot = my.rounds->slot_bytes() / sizeof(float);
  const size_t step = one_shot ? slot : slot * static_cast<size_t>(my.size);
  for (size_t done = 0; done < count; done += step) {
    const size_t n = std::min(step, count - done);
    one_shot ? my.ReduceOneShot(data + done, n) : my.ReduceInParts(data + done, n);
  }
}

void Communicator::AllGather(const void* in, void* out, size_t bytes_per_rank) {
  std::ranges::fill(impl_->equal_counts, bytes_per_rank);
  AllGatherV(in, out, impl_->equal_counts);
}

void Communicator::AllGatherV(const void* in, void* out, std::span<const size_t> counts) {
  Impl& my = *impl_;
  CHECK_EQ(counts.size(), my.places.size());
  auto* place = static_cast<std::byte*>(out);
  for (size_t r = 0; r < counts.size(); ++r) {
    my.places[r] = {place, counts[r]};
    place += counts[r];
  }
  const std::span<std::byte> mine = my.places[my.rank];
  if (!mine.empty() && in != mine.data()) std::memcpy(mine.data(), in, mine.size());
  if (my.size == 1) return;

  const size_t slot = my.rounds->slot_bytes();
  const size_t longest = *std::ranges::max_element(counts);
  for (size_t done = 0; done < longest; done += slot) {
    my.rounds->Begin(my.all_gather.c_str());
    my.SendToAll(Piece(mine, done, slot));
    for (int k = 0; k < my.rounds->num_peers(); ++k) {
      const int peer = my.rounds->Peer(k);
      const std::byte* bytes = my.rounds->Inbox(peer);
      const auto target = Piece(my.places[peer], done, slot);
      if (!target.empty()) std::memcpy(target.data(), bytes, target.size());
    }
  }
}

void Communicator::ReduceScatterSum(const float* in, float* out, size_t count_per_rank) {
  std::ranges::fill(impl_->equal_counts, count_per_rank);
  ReduceScatterV(in, out, impl_->equal_counts);
}

void Communicator::ReduceScatterV(const float* in, float* out, std::span<const size_t> counts) {
  Impl& my = *impl_;
  CHECK_EQ(counts.size(), my.parts.size());
  for (size_t r = 0; r < counts.size(); ++r) {
    my.parts[r] = {in, counts[r]};
    in += counts[r];
  }
  const std::span<const float> mine = my.parts[my.rank];
  if (my.size == 1) {
    if (!mine.empty() && out != mine.data()) std::memcpy(out, mine.data(), mine.size_bytes());
    return;
  }
  const size_t slot = my.rounds->slot_bytes() / sizeof(float);
  const size_t longest = *std::ranges::max_element(counts);
  for (size_t done = 0; done < longest; done += slot) {
    my.rounds->Begin(my.reduce_scatter.c_str());
    for (int k = 0; k < my.rounds->num_peers(); ++k) {
      const int peer = my.rounds->Peer(k);
      const auto piece = Piece(my.parts[peer], done, slot);
      std::byte* outbox = my.rounds->Outbox(peer);
      if (!piece.empty()) std::memcpy(outbox, piece.data(), piece.size_bytes());
      my.rounds->Post(peer, piece.size_bytes());
    }
    const auto piece = Piece(mine, done, slot);
    my.SumInboxes(piece.data(), out + (piece.data() - mine.data()), piece.size());
  }
}

void Communicator::Barrier(const char* stage, bool idle) {
  Impl& my = *impl_;
  if (my.size == 1) return;
  my.rounds->Begin(stage);
  my.rounds->PostToAll();
  for (int k = 0; k < my.rounds->num_peers(); ++k) my.rounds->Inbox(my.rounds->Peer(k), idle);
}

// In the first round, the leader's slots hold the length of the message and its first bytes; in
// later rounds they hold only bytes. The other members post empty rounds and read from the leader
// only.
std::string Communicator::Broadcast(const std::string& from_leader, bool idle) {
  Impl& my = *impl_;
  if (my.size == 1) return from_leader;
  const bool leader = my.rank == 0;
  const size_t slot = my.rounds->slot_bytes();
  std::string message = leader ? from_leader : std::string();
  uint64_t length = message.size();
  size_t done = 0;
  bool first = true;
  do {
    my.rounds->Begin(my.broadcast.c_str());
    const size_t header = first ? sizeof length : 0;
    if (leader) {
      const size_t n = std::min(slot - header, message.size() - done);
      for (int k = 0; k < my.rounds->num_peers(); ++k) {
        const int peer = my.rounds->Peer(k);
        std::byte* bytes = my.rounds->Outbox(peer);
        if (first) std::memcpy(bytes, &length, sizeof length);
        if (n > 0) std::memcpy(bytes + header, message.data() + done, n);
        my.rounds->Post(peer, header + n);
      }
      done += n;
    } else {
      my.rounds->PostToAll();
      const std::byte* bytes = my.rounds->Inbox(0, idle && first);
      if (first) {
        std::memcpy(&length, bytes, sizeof length);
        message.resize(length);
      }
      const size_t n = std::min(slot - header, message.size() - done);
      if (n > 0) std::memcpy(message.data() + done, bytes + header, n);
      done += n;
    }
    first = false;
  } while (done < length);
  return message;
}

size_t RankComm::BytesPerRank(const MeshShape& shape) {
  const Mesh mesh(shape, 0);
  size_t bytes = 0;
  for (const int size : {mesh.tp(), mesh.ep(), mesh.moe_tp(), mesh.attn_tp()}) {
    if (size > 1) bytes += StagedRounds::BytesPerRank(size, Communicator::kStagingBytes);
  }
  if (mesh.pp() == 1) return bytes;
  for (const int size : {mesh.world(), mesh.pp()})
    bytes += StagedRounds::BytesPerRank(size, Communicator::kStagingBytes);
  return bytes;
}

std::unique_ptr<RankComm> RankComm::Create(std::shared_ptr<SharedArena> arena,
                                           const MeshShape& shape, int rank,
                                           SymmetricMemory::Options options) {
  return In(std::make_shared<SymmetricMemory>(std::move(arena), rank, options), shape);
}

std::unique_ptr<RankComm> RankComm::In(std::shared_ptr<SymmetricMemory> memory,
                                       const MeshShape& shape) {
  auto comm = std::make_unique<RankComm>();
  comm->memory = std::move(memory);
  CHECK_LE(shape.world(), comm->memory->world());
  comm->mesh = Mesh(shape, comm->memory->rank());
  comm->tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.TpGroup(), "tp");
  comm->ep = std::make_unique<Communicator>(*comm->memory, comm->mesh.EpGroup(), "ep");
  comm->moe_tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.MoeTpGroup(), "moe-tp");
  comm->attn_tp =
      std::make_unique<Communicator>(*comm->memory, comm->mesh.AttnTpGroup(), "attn-tp");
  if (comm->mesh.pp() == 1) return comm;
  comm->world = std::make_unique<Communicator>(*comm->memory, comm->mesh.World(), "world");
  comm->pp = std::make_unique<Communicator>(*comm->memory, comm->mesh.PpGroup(), "pp");
  return comm;
}

}  // namespace switchyard
