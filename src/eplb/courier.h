// Chunked expert weight transfers between ranks, interleaved with forward passes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/device/communicator.h"
#include "core/tensor.h"
#include "eplb/transfers.h"
#include "moe/placement/expert_image.h"

namespace switchyard {

// One per rank, used by the rank's thread only; borrows `comm`. Every rank makes the same calls of
// Begin, Step and Cancel in the same order. Between two Steps all ranks take part in a collective
// (an all-gather), so no piece is overwritten before it has been read. Pieces go through a double
// buffer in the receiver's symmetric memory. A piece written in one step is read in the next, so
// Step itself never waits for another rank. The batches of PlanTransfers run one after the other.
// Each rank of a MoE-TP group sends its shard to the rank with the same MoE-TP index in the
// receiving group.
class ExpertCourier {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  static size_t BytesPerRank(int world);

  // Allocates symmetric memory. `piece_bytes`: maximum size of a piece; tests use smaller pieces.
  explicit ExpertCourier(RankComm& comm, size_t piece_bytes = kPieceBytes);

  struct LayerBatches {
    int layer = 0;
    std::vector<std::vector<Transfer>> batches;
  };
  // Returns an expert of this rank by its local index.
  using Held = std::function<OwnedExpert(int layer, int local)>;
  // Starts the transfers of all batches. `physical`: number of slots of a layer. `held` reads the
  // experts to be sent.
  void Begin(const std::vector<LayerBatches>& layers, int physical, Held held);

  bool active() const { return batch_ < batches_.size(); }
  // Number of batches that this rank has completed since Begin. The caller shares it with the other
  // ranks before the next Step.
  int64_t batches_done() const { return static_cast<int64_t>(batch_) + (idle() ? 1 : 0); }
  int64_t pieces() const { return pieces_; }  // received since construction
  // Sends and receives at most one piece. `all_done`: the minimum of batches_done over all ranks.
  void Step(int64_t all_done);
  // Drops the transfers in flight. Returns the experts received so far, because freeing them may
  // take time.
  std::map<int, std::map<int32_t, OwnedExpert>> Cancel();

  // The experts received since Begin, by layer and logical expert. Call it once, when all transfers
  // have ended (not active).
  std::map<int, std::map<int32_t, OwnedExpert>> Take();

 private:
  struct Batch {
    int layer = 0;
    std::optional<Transfer> send, receive;
  };
  bool idle() const { return !sending_ && !receiving_; }
  void Open(uint32_t first_piece);
  void Send();
  void Receive();
  int WorldRank(int ep_rank) const;
  size_t BufferOf(uint32_t step) const { return buffers_ + step % 2 * piece_bytes_; }

  RankComm& comm_;
  const size_t piece_bytes_;
  // Offsets in the arena: of the two piece buffers, and of the flags [world], the last step in
  // which each rank sent a piece.
  size_t buffers_ = 0, flags_ = 0;
  uint32_t step_ = 0;
  int64_t pieces_ = 0;

  std::vector<Batch> batches_;
  size_t batch_ = 0;
  int physical_ = 0;
  Held held_;
  struct Sending {
    ExpertImage image;
    size_t sent = 0;
  };
  std::optional<Sending> sending_;
  struct Receiving {
    uint32_t first_step = 0;  // first step in which a piece may be read
    Tensor run;               // undefined until the first piece arrives
    size_t received = 0;
  };
  std::optional<Receiving> receiving_;
  std::map<int, std::map<int32_t, OwnedExpert>> arrived_;
};

}  // namespace switchyard
