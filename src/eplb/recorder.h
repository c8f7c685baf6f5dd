// Records the experts chosen by the router (--expert-distribution-recorder-mode) and the resulting
// rank load balance (--enable-expert-distribution-metrics). Modes, endpoints and log line follow
// SGLang's srt/eplb/expert_distribution.py.
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
  int layers = 0;   // of the model, including dense layers, whose counts stay 0
  int experts = 0;  // logical
  int top_k = 0;
  int redundant = 0;               // physical experts beyond the logical ones
  bool shared_dispatched = false;  // one additional physical expert on each EP rank
};

// The rows of this rank's attention group in a pass. Only used by per_token.
struct PassTokens {
  std::span<const int32_t> positions;     // [T]
  std::span<const int32_t> rows;          // [sequences] rows of each sequence; they sum to T
  std::span<const uint64_t> request_ids;  // [sequences]
};

// One per rank, next to the model that it observes; borrows `comm`. The rank's thread only. Every
// rank of the world makes the same calls in the same order. Calls marked collective exchange data.
class ExpertRecorder : public RoutingObserver {
 public:
  // Error kInvalid: errors of Validate.
  ExpertRecorder(const ExpertRecorderOptions& options, const ExpertRecorderShape& shape,
                 RankComm& comm);

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void OnRoute(int layer, const RoutedTokens& tokens) override;
  bool wants_tokens() const override { return by_token_; }
  void OnCounts(int layer, const RoutedCounts& counts) override;
  bool wants_pass() const override { return in_pass_; }
  bool wants_dispatch() const override { return by_dispatch_; }
  void OnDispatch(int layer, const GroupedRows& rows) override;

  // Called around each pass of the model. `tokens`: rows of this rank's attention group. With
  // metrics, EndPass is collective, and rank 0 logs the balancedness line.
  void BeginPass(int64_t tokens);
  void EndPass(const PassTokens& tokens);

  // Start clears earlier records and starts recording; Stop keeps them. Start returns false if
  // recording was already active, Stop if it was not. Both cases merit only a warning. Error
  // kInvalid without a mode.
  bool Start();
  bool Stop();
  bool recording() const { return recording_; }

  // Collective. Writes the records to a file in `dir` on rank 0's host, and clears them. On failure
  // the records are kept, and `error` has the reason. Recording continues if it was active. Only
  // rank 0 gets a result; the others get an empty one. Tensors of the file, for N steps, L layers,
  // E experts, R ranks, T tokens:
  //   logical_count [N, L, E] int32, of all ranks; forward_pass_id [N] int64
  //   physical_to_logical [L, P] int32, the last placement; −1 in dense layers
  //   per_pass: rank_logical_count [N, R, L, E] int32, of each rank's own tokens
  //   per_token: token_step [T] int32 (index into N), positions [T] int32, request_ids [T] int64,
  //   topk_ids [T, L, top_k] int32 (−1: none); by step, attention group and row
  ExpertDump Dump();
  // Collective; only rank 0 gets a result.
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
  const int physical_;  // slots of all ranks, including dispatched shared experts
  const bool by_dispatch_, by_token_;
  const std::vector<int32_t> owner_;              // [physical] EP rank
  const std::vector<int32_t> local_to_physical_;  // of this rank's experts
  std::vector<int32_t> physical_to_logical_;      // [layers, physical], −1 for shared and dense

  bool recording_ = false, in_pass_ = false;
  int64_t passes_ = 0, counted_passes_ = 0;
  // This rank's contribution to the current pass.
  std::vector<int32_t> count_;      // [layers, physical]
  std::vector<int32_t> token_ids_;  // [group's tokens, layers, top_k]
  std::vector<uint8_t> is_own_;     // [group's tokens]
  std::vector<int32_t> logical_;    // [layers, experts] count_ by logical expert
  std::vector<int32_t> by_rank_;    // [layers, EP ranks] count_ by the rank of the slot
  std::vector<float> reduced_;      // [layers, EP ranks]
  // [layers · (experts + EP ranks)] logical_, then by_rank_, summed over all counted passes
  std::vector<int64_t> total_;
  RecordedSteps steps_;
  BalancednessWindows windows_;
};

}  // namespace switchyard
