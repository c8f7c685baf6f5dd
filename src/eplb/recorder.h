// Records which experts the router chose (--expert-distribution-recorder-mode), and how evenly
// that loads the ranks (--enable-expert-distribution-metrics). After SGLang's
// srt/eplb/expert_distribution.py, whose modes, endpoints and log line it has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/communicator.h"
#include "eplb/balancedness.h"
#include "eplb/recorded_steps.h"
#include "eplb/recorder_options.h"
#include "moe/options.h"
#include "moe/routing_observer.h"

namespace switchyard {

struct ExpertRecorderShape {
  int layers = 0;   // of the model, those without experts too: their counts stay 0
  int experts = 0;  // logical
  int top_k = 0;
  int redundant = 0;               // physical experts beyond the logical ones
  bool shared_dispatched = false;  // one more physical expert on each EP rank
};

// The rows of this rank's attention group in a pass; only per_token reads them.
struct PassTokens {
  std::span<const int32_t> positions;     // [T]
  std::span<const int32_t> rows;          // [sequences] of T, one after the other
  std::span<const uint64_t> request_ids;  // [sequences]
};

// One per rank, next to the model that it observes; borrows `comm`. The rank's thread only. Every
// rank of the world gets the same calls in the same order; those marked collective exchange data.
class ExpertRecorder : public RoutingObserver {
 public:
  // Error kInvalid as Validate has it.
  ExpertRecorder(const ExpertRecorderOptions& options, const ExpertRecorderShape& shape,
                 RankComm& comm);

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void OnRoute(int layer, const RoutedTokens& tokens) override;
  bool wants_dispatch() const override { return by_dispatch_; }
  void OnDispatch(int layer, const GroupedRows& rows) override;

  // Around each pass of the model; `tokens` of this rank's attention group. EndPass is collective
  // with metrics, and rank 0 then writes the line of balancedness to the log.
  void BeginPass(int64_t tokens);
  void EndPass(const PassTokens& tokens);

  // Forgets what was recorded and begins anew; Stop keeps it. False where it was recording
  // (or was not) already: worth a warning, no more. Error kInvalid without a mode.
  bool Start();
  bool Stop();
  bool recording() const { return recording_; }

  // Collective. Writes what was recorded into a file in `dir`, on rank 0's host, and forgets it;
  // where that fails it is kept, and `error` says why. Recording goes on if it did. The answer is
  // rank 0's alone; others have an empty one. The file's tensors, N steps, L layers, E experts, R
  // ranks, T tokens:
  //   logical_count [N, L, E] int32, of all ranks; forward_pass_id [N] int64
  //   physical_to_logical [L, P] int32, the last placement; −1 in layers without experts
  //   per_pass: rank_logical_count [N, R, L, E] int32, of each rank's own tokens
  //   per_token: token_step [T] int32 (index into N), positions [T] int32, request_ids [T] int64,
  //   topk_ids [T, L, top_k] int32 (−1: none); by step, attention group and row
  ExpertDump Dump();
  // Collective; the answer is rank 0's alone.
  ExpertLoad Load();

 private:
  bool active() const { return recording_ || options_.metrics; }
  void Record(const PassTokens& tokens);
  void RecordTokens(const PassTokens& tokens, RecordedStep* step) const;
  void CountPass();
  void UpdateBalancedness();
  ExpertDump WriteDump();

  const ExpertRecorderOptions options_;
  const ExpertRecorderShape shape_;
  RankComm& comm_;
  const ExpertMap map_;
  const int physical_;  // of all ranks, dispatched shared ones included
  const bool by_dispatch_, by_token_;
  const std::vector<int32_t> owner_;              // [physical] EP rank
  const std::vector<int32_t> local_to_physical_;  // of this rank's experts
  std::vector<int32_t> physical_to_logical_;      // [layers, physical], −1 for shared and none

  bool recording_ = false, in_pass_ = false;
  int64_t passes_ = 0, counted_passes_ = 0;
  // Of the pass under way, this rank's contribution.
  std::vector<int32_t> count_;      // [layers, physical]
  std::vector<int32_t> token_ids_;  // [group's tokens, layers, top_k]
  std::vector<uint8_t> is_own_;     // [group's tokens]
  std::vector<int32_t> logical_;    // [layers, experts] the same by expert
  std::vector<int32_t> by_rank_;    // [layers, EP ranks] the same by the rank of the place
  std::vector<float> reduced_;      // [layers, EP ranks]
  // [layers · (experts + EP ranks)] logical_, then by_rank_, of all counted passes
  std::vector<int64_t> total_;
  RecordedSteps steps_;
  BalancednessWindows windows_;
};

}  // namespace switchyard
