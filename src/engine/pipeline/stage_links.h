// The connections of a rank to the other stages of its pipeline.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "comm/device/communicator.h"
#include "comm/device/message_lane.h"
#include "engine/config.h"

namespace switchyard {

struct StageLinkSizes {
  int stages = 1;
  size_t rows_bytes = 0;  // of the hidden rows of the largest batch
  int batches = 1;        // in flight
};
// The number of batches in flight: one for each stage, and --pp-async-batch-depth more.
int PassesInFlight(const EngineConfig& config);
StageLinkSizes StageLinkSizesOf(const EngineConfig& config, const EnginePlan& plan);

// Every rank of a stage is connected to the ranks with the same place in other stages:
//
//   rows:     hidden rows, stage → next stage
//   results:  what the last stage computes from logits, last stage → first → second → … → last but
//   one control:  messages of the front, first rank of a stage → first rank of the next stage
//
// A stage may be ahead of the next one by the number of batches in flight, since the lane of rows
// holds as many messages. While a rank waits for room to send rows or control messages, it receives
// results. Otherwise the last stage could wait for room to send results, and the first one for room
// to send messages that the last one has not read. Owned by the rank's loop; used by the rank's
// thread only.
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

  void SendControl(std::string_view bytes) { control_.Send(std::as_bytes(std::span(bytes))); }
  std::string ReceiveControl(bool idle) { return control_.Receive(idle); }
  // On the last stage.
  void SendResults(std::string_view bytes);
  // On the other stages: passes the results on, if a later stage needs them.
  std::string ReceiveResults();

 private:
  std::string TakeResults();

  MessageLane rows_, results_, control_;
  const bool forwards_results_;
  std::deque<std::string> early_;  // results received while other messages were sent
};

}  // namespace switchyard
