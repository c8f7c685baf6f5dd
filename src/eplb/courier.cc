#include "eplb/courier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "moe/placement/placement.h"

namespace switchyard {
namespace {

// Size in bytes of the head of the first piece. The head is the size of the expert image in bytes.
constexpr size_t kHead = sizeof(uint64_t);

}  // namespace

size_t ExpertCourier::BytesPerRank(int world) {
  constexpr size_t kAlignment = 64;
  return 2 * kPieceBytes + (world * sizeof(uint32_t) / kAlignment + 1) * kAlignment + kAlignment;
}

ExpertCourier::ExpertCourier(RankComm& comm, size_t piece_bytes)
    : comm_(comm), piece_bytes_(piece_bytes) {
  CHECK_GT(piece_bytes, kHead);
  CHECK_LE(piece_bytes, kPieceBytes);
  buffers_ = comm.memory->Allocate(2 * piece_bytes);
  flags_ = comm.memory->Allocate(comm.memory->world() * sizeof(uint32_t));
}

int ExpertCourier::WorldRank(int ep_rank) const {
  return ep_rank * comm_.mesh.moe_tp() + comm_.mesh.moe_tp_rank();
}

void ExpertCourier::Begin(const std::vector<LayerBatches>& layers, int physical, Held held) {
  const int me = comm_.mesh.ep_rank();
  batches_.clear();
  arrived_.clear();
  for (const LayerBatches& layer : layers)
    for (const std::vector<Transfer>& batch : layer.batches) {
      Batch mine{.layer = layer.layer};
      for (const Transfer& t : batch) {
        if (t.from_rank == me) mine.send = t;
        if (t.to_rank == me) mine.receive = t;
      }
      batches_.push_back(mine);
    }
  batch_ = 0;
  physical_ = physical;
  held_ = std::move(held);
  if (active()) Open(step_ + 2);
}

// Begins the next batch of transfers. `first_piece`: the first step in which one of its pieces may
// be read.
void ExpertCourier::Open(uint32_t first_piece) {
  const Batch& batch = batches_[batch_];
  sending_.reset();
  receiving_.reset();
  if (batch.send) {
    const Range own = ExpertsOfRank(physical_, comm_.mesh);
    sending_.emplace(
        Sending{.image = ExpertImage(held_(batch.layer, batch.send->from_slot - own.begin))});
  }
  if (batch.receive) receiving_.emplace(Receiving{.first_step = first_piece});
}

// Reads the piece that was sent in the previous step, before it sends a piece in this step.
void ExpertCourier::Step(int64_t all_done) {
  if (!active()) return;
  ++step_;
  if (receiving_) Receive();
  if (all_done > static_cast<int64_t>(batch_)) {
    CHECK(idle());
    ++batch_;
    if (!active()) return;
    Open(step_ + 1);
  }
  if (sending_) Send();
}

void ExpertCourier::Send() {
  SymmetricMemory& memory = *comm_.memory;
  const int to = WorldRank(batches_[batch_].send->to_rank);
  const size_t buffer = BufferOf(step_);
  std::byte* out = memory.At(to, buffer);
  size_t space = piece_bytes_;
  if (sending_->sent == 0) {
    const uint64_t size = sending_->image.bytes();
    std::memcpy(out, &size, kHead);
    out += kHead;
    space -= kHead;
  }
  const size_t size = std::min(space, sending_->image.bytes() - sending_->sent);
  sending_->image.Copy(sending_->sent, {out, size});
  sending_->sent += size;
  memory.Wrote(to, buffer, static_cast<size_t>(out + size - memory.At(to, buffer)));
  memory.Raise(to, flags_ + memory.rank() * sizeof(uint32_t), step_);
  if (sending_->sent == sending_->image.bytes()) sending_.reset();
}

void ExpertCourier::Receive() {
  if (step_ < receiving_->first_step) return;
  SymmetricMemory& memory = *comm_.memory;
  const Batch& batch = batches_[batch_];
  const int from = WorldRank(batch.receive->from_rank);
  memory.Wait(flags_ + from * sizeof(uint32_t), step_ - 1, from, "expert transfer");
  const std::byte* in = memory.Local(BufferOf(step_ - 1));
  size_t space = piece_bytes_;
  if (!receiving_->bytes.defined()) {
    uint64_t size = 0;
    std::memcpy(&size, in, kHead);
    receiving_->bytes = Tensor::Empty(DType::kU8, {static_cast<int64_t>(size)});
    in += kHead;
    space -= kHead;
  }
  Tensor& bytes = receiving_->bytes;
  const size_t size = std::min(space, bytes.num_bytes() - receiving_->received);
  std::memcpy(static_cast<std::byte*>(bytes.mutable_raw()) + receiving_->received, in, size);
  receiving_->received += size;
  ++pieces_;
  if (receiving_->received < bytes.num_bytes()) return;
  const auto owner = std::make_shared<Tensor>(std::move(bytes));
  arrived_[batch.layer][batch.receive->expert] =
      ExpertFromImage({owner, static_cast<const std::byte*>(owner->raw())}, owner->num_bytes());
  receiving_.reset();
}

std::map<int, std::map<int32_t, OwnedExpert>> ExpertCourier::Cancel() {
  batches_.clear();
  batch_ = 0;
  sending_.reset();
  receiving_.reset();
  return std::exchange(arrived_, {});
}

std::map<int, std::map<int32_t, OwnedExpert>> ExpertCourier::Take() {
  CHECK(!active());
  return std::exchange(arrived_, {});
}

}  // namespace switchyard
