// Experts that ranks send one another between passes, piece by piece.
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
#include "moe/expert_image.h"

namespace switchyard {

// One per rank; its thread; borrows `comm`. Every rank calls Begin, Step and Cancel alike, with
// something between two Steps that all ranks take part in (an all-gather), which is what keeps a
// piece from being overwritten before it was read. Pieces go through two buffers in the symmetric
// memory of who receives: what is written there in one step is read in the next, so that no rank
// ever waits for another. The batches of PlanTransfers go one after the other; ranks of a MoE-TP
// group each send their part to the rank of the same place in the other group.
class ExpertCourier {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  static size_t BytesPerRank(int world);

  // Allocates symmetrically. Smaller pieces are for tests.
  explicit ExpertCourier(RankComm& comm, size_t piece_bytes = kPieceBytes);

  struct LayerBatches {
    int layer = 0;
    std::vector<std::vector<Transfer>> batches;
  };
  // The expert at a place of this rank, by its index among the rank's.
  using Held = std::function<OwnedExpert(int layer, int local)>;
  // `physical`: places of a layer.
  void Begin(const std::vector<LayerBatches>& layers, int physical, Held held);

  bool active() const { return batch_ < batches_.size(); }
  // Batches since Begin that this rank has ended; what it tells the others before the next Step.
  int64_t batches_done() const { return static_cast<int64_t>(batch_) + (idle() ? 1 : 0); }
  int64_t pieces() const { return pieces_; }  // received, since it was made
  // Sends and receives one piece at most. `all_done`: the least batches_done of all ranks.
  void Step(int64_t all_done);
  // Drops what is on its way. Returns what has arrived: letting go of it may take time.
  std::map<int, std::map<int32_t, OwnedExpert>> Cancel();

  // What has arrived since Begin, by layer and logical expert; once, when it is no longer active.
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
  size_t buffers_ = 0, flags_ = 0;  // offsets: two pieces; [world] last step in which it sent
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
    uint32_t first_step = 0;  // in which a piece may be read
    Tensor run;               // undefined before the first piece
    size_t received = 0;
  };
  std::optional<Receiving> receiving_;
  std::map<int, std::map<int32_t, OwnedExpert>> arrived_;
};

}  // namespace switchyard
