// The connections of a rank to the other stages of its pipeline.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/message_lane.h"
#include "comm/device/progress_clock.h"
#include "engine/config.h"
#include "model/options.h"

namespace switchyard {

struct StageLinkSizes {
  int stages = 1;
  // Of the hidden rows of the largest batch. GPUs send rows themselves, and announce them here.
  size_t rows_bytes = 0;
  static constexpr size_t kAnnouncement = 64;
  size_t routed_bytes = 64;                // of the chosen experts of the largest batch
  int batches = 1;                         // in flight
  size_t results_bytes = size_t{1} << 20;  // of a part of results
  bool moves_experts = false;              // --enable-eplb
};
// The number of batches in flight: one for each stage, and --pp-async-batch-depth more.
int PassesInFlight(const EngineConfig& config);
StageLinkSizes StageLinkSizesOf(const EngineConfig& config, const EnginePlan& plan);

// Every rank of a stage is connected to the ranks with the same place in other stages:
//
//   rows:     hidden rows, stage → next stage; on GPUs, the announcements of rows
//   routed:   experts that the layers so far have chosen, stage → next stage; only the first rank
//             of an attention group, and only for batches that return them
//   results:  what the last stage computes from logits: last stage → first → … → last but one
//   control:  messages of the front, first rank of a stage → first rank of the next stage
//   loads:    sums of expert loads for --enable-expert-distribution-metrics (ExpertRecorder), first
//             rank of a stage → first rank of the next stage, last stage → first stage
//
// A stage may be ahead of the next one by the number of batches in flight, since the lanes of rows
// and of chosen experts hold as many messages. Results without log-probabilities and pooled vectors
// are small, and the lane holds those of all batches in flight. The first rank of each attention
// group of the first stage receives all results, which may exceed the lane. So it receives results
// while it waits for room to send rows or control messages, or for the first rank of its stage.
// Otherwise the last stage could wait for room to send results, and the first one for room to send
// messages that the last one has not read.
//
// A stage may compute for long, so a wait for another stage ends only after --dist-timeout without
// progress there (ProgressClock). Error kTimeout names both ranks with their stages, and what the
// rank waits for. Owned by the rank's loop; used by the rank's thread only.
class StageLinks {
 public:
  // Allocates symmetric memory: constructed on every rank of the world before the model, because
  // models of different stages allocate different sizes.
  StageLinks(RankComm& comm, const StageLinkSizes& sizes);
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;
  // Bytes in each rank's arena; 0 with one stage.
  static size_t BytesPerRank(const StageLinkSizes& sizes);

  MessageLane& rows() { return rows_; }
  // Never full: it holds the sums of more passes than can end before the first stage reads.
  MessageLane& loads() { return loads_; }
  MessageLane& routed() { return routed_; }
  // Counts the work of a model as progress. Its before_operation is still called.
  void WatchWorkOf(ModelOptions* options);
  // The same for the model that sends and receives rows.
  void AddTo(ModelOptions* options);
  // This rank has done some work, so the ranks of other stages may wait for it longer.
  void Advance() { clock_.Advance(); }
  // Waits until the ranks with the same place in other stages have called it too. Stages load
  // different amounts.
  void AwaitLoaded();

  void SendControl(std::string_view bytes) { control_.Send(std::as_bytes(std::span(bytes))); }
  std::string ReceiveControl(bool idle) { return control_.Receive(idle); }
  // On the last stage.
  void SendResults(std::string_view bytes);
  // On the other stages. PassOnResults sends results to the next stage, if it needs them. A rank
  // passes results on when it processes them, not while it waits for room: the next stage might not
  // read them at that time.
  std::string ReceiveResults();
  void PassOnResults(std::string_view bytes);

  // Before a broadcast in the stage, while batches are in flight: the first rank of the stage calls
  // BeginBroadcast, and the others call AwaitBroadcast. The first rank may wait for other stages
  // before. `idle`: it may also wait for messages, so there is no deadline.
  void BeginBroadcast();
  void AwaitBroadcast(bool idle);

  // Expert moves. While experts of a later stage move, the first stage has to send messages, also
  // without requests, because a step of a stage begins with a message. The first rank of each stage
  // calls TellMoving before each step. OthersMove: on rank 0, whether another stage has told so.
  bool moves_experts() const { return moves_experts_; }
  void TellMoving(bool moving);
  bool OthersMove();

 private:
  // Receives the results that have arrived.
  void TakeEarly();
  // Whether the rank is the first one of an attention group of the first stage, other than the
  // first group.
  static bool LeadsLaterGroup(const Mesh& mesh, int tp_rank);

  SymmetricMemory& memory_;
  const Mesh mesh_;
  ProgressClock clock_;
  const bool moves_experts_;
  MessageLane rows_, routed_, results_, control_, loads_;
  const size_t broadcast_;  // flag: number of broadcasts that the stage's first rank has begun
  const size_t loaded_;     // flags, one line for each stage
  // Flags at rank 0, one line for each stage: how often the stage began or ended to move experts.
  const size_t moves_;
  uint32_t broadcasts_ = 0;
  uint32_t my_moves_ = 0;                  // the value of this stage's flag
  std::vector<uint32_t> moves_of_stages_;  // on rank 0: the values that were seen
  std::deque<std::string> early_;          // results received while other messages were sent
};

}  // namespace switchyard
