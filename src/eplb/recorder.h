// Records the experts chosen by the router, and the resulting balance of the ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/device/communicator.h"
#include "comm/device/message_lane.h"
#include "eplb/recorder_options.h"
#include "moe/options.h"
#include "moe/router/routing_observer.h"

namespace switchyard {

// Recorded passes of a rank. Keeps the last passes in a ring buffer, or all passes.

// Counts of one rank in one pass. They cover the rank's own tokens or, with stat_approx, the rows
// of its experts. The sum over ranks covers the whole pass.
struct RecordedStep {
  int64_t pass = 0;              // index of the pass since the server started
  std::vector<int32_t> logical;  // [layers, experts]
  // per_token mode: this rank's own tokens, ascending by row of the attention group.
  std::vector<int32_t> rows, positions;  // [n]
  std::vector<int64_t> request_ids;      // [n] EngineRequest::id
  std::vector<int32_t> topk_ids;         // [n, layers, top_k], −1 for none
};

// Owned by the recorder. Recording into a full ring buffer allocates nothing in steady state.
class RecordedSteps {
 public:
  explicit RecordedSteps(int64_t capacity) : capacity_(capacity) {}  // −1: no limit

  // Appends an empty step, which reuses the oldest step's memory if the buffer is full.
  RecordedStep& Append() {
    if (capacity_ >= 0 && static_cast<int64_t>(steps_.size()) == capacity_) {
      RecordedStep oldest = std::move(steps_.front());
      steps_.pop_front();
      oldest.logical.clear();
      oldest.rows.clear();
      oldest.positions.clear();
      oldest.request_ids.clear();
      oldest.topk_ids.clear();
      return steps_.emplace_back(std::move(oldest));
    }
    return steps_.emplace_back();
  }
  void Clear() { steps_.clear(); }
  const std::deque<RecordedStep>& steps() const { return steps_; }

 private:
  const int64_t capacity_;
  std::deque<RecordedStep> steps_;
};

// Records the experts chosen by the router (--expert-distribution-recorder-mode) and the resulting
// rank load balance (--enable-expert-distribution-metrics). Modes, endpoints and log line follow
// SGLang's srt/eplb/expert_distribution.py.

struct ExpertRecorderShape {
  int layers = 0;  // layers of the model; dense layers are included, and their counts stay 0
  // Pipeline stages: the first layer of this rank's stage. Observed layers count from it. The
  // counts of other stages' layers stay 0 on this rank.
  int first_layer = 0;
  int experts = 0;  // logical
  int top_k = 0;
  int redundant = 0;  // physical experts beyond the logical ones
  // Whether each EP rank has one more physical expert, for the dispatched shared expert.
  bool shared_dispatched = false;
};

// The rows of this rank's attention group in a pass. Only mode per_token uses them.
struct PassTokens {
  std::span<const int32_t> positions;     // [T]
  std::span<const int32_t> rows;          // [sequences] rows of each sequence; they sum to T
  std::span<const uint64_t> request_ids;  // [sequences]
};

// One per rank, next to the model that it observes; borrows `comm`. Used by the rank's thread only.
// Every rank of the world makes the same calls in the same order. A call whose comment says
// "collective" exchanges data between ranks. Counts are kept for each pass number, so several
// passes may be in flight and interleaved.
class ExpertRecorder : public RoutingObserver {
 public:
  // Error kInvalid: errors of Validate.
  ExpertRecorder(const ExpertRecorderOptions& options, const ExpertRecorderShape& shape,
                 RankComm& comm);

  void OnPlacement(int layer, const ExpertPlacement& placement) override;
  void OnRoute(uint64_t pass, int layer, const RoutedTokens& tokens) override;
  bool needs_tokens() const override { return by_token_; }
  void OnCounts(uint64_t pass, int layer, const RoutedCounts& counts) override;
  bool needs_pass(uint64_t pass) const override { return Find(pass) != nullptr; }
  bool needs_dispatch() const override { return by_dispatch_; }
  void OnDispatch(uint64_t pass, int layer, const GroupedRows& rows) override;
  void OnTimes(uint64_t pass, const MoeTimes& times) override;
  bool needs_times() const override { return true; }

  // Called around each pass of the model. `pass`: number of the pass, unique among the passes in
  // flight. `tokens`: number of rows of this rank's attention group. Passes end in the order in
  // which they began. With metrics, EndPass is collective, and rank 0 logs the balancedness line.
  void BeginPass(uint64_t pass, int64_t tokens);
  void EndPass(uint64_t pass, const PassTokens& tokens);
  // Ends an aborted pass without counting it.
  void AbortPass(uint64_t pass);

  // With several pipeline stages, metrics need a lane that connects the first ranks of all stages
  // in a ring, and outlives the recorder. When the first rank of a stage ends a pass, it adds the
  // sum of its layers to that of the stages before. The last stage sends the sum to rank 0, which
  // does not wait for it. Call it before the first pass. The lane has to have room for the sums of
  // all passes that end before rank 0 reads.
  void UseLane(MessageLane& lane) { lane_ = &lane; }
  // On rank 0: logs the lines of the passes whose sums have arrived. EndPass calls it too.
  void TakeSums();

  // Start clears earlier records and starts recording. Stop ends recording and keeps the records.
  // Start returns false if recording was already active, and Stop returns false if it was not
  // active. Callers should only warn in these cases. Error kInvalid if no mode is set.
  bool Start();
  bool Stop();
  bool recording() const { return recording_; }

  // Collective. Writes the records to a file in `dir` on rank 0's host, and clears them. If this
  // fails, the records are kept, and `error` has the reason. Recording continues if it was active.
  // Only rank 0 gets a result; the others get an empty one. Tensors of the file, for N steps, L
  // layers, E experts, P slots, R ranks, T tokens:
  //   logical_count [N, L, E] int32, summed over all ranks; forward_pass_id [N] int64
  //   physical_to_logical [L, P] int32, the last placement; −1 in dense layers
  //   per_pass: rank_logical_count [N, R, L, E] int32, of each rank's own tokens
  //   per_token: token_step [T] int32 (index into N), positions [T] int32, request_ids [T] int64,
  //   topk_ids [T, L, top_k] int32 (−1: none); tokens in order of step, attention group and row
  ExpertDump Dump();
  // Collective; only rank 0 gets a result, the others get an empty one.
  ExpertLoad Load();

 private:
  // Maps slots to logical experts in all layers: [layers, physical], −1 for shared experts and in
  // dense layers. A pass in flight keeps the map with which it began.
  using SlotMap = std::shared_ptr<const std::vector<int32_t>>;
  // This rank's contribution to a pass in flight.
  struct OpenPass {
    uint64_t pass = 0;
    bool records = false;  // whether recording was active when the pass began
    SlotMap slots;
    std::vector<int32_t> count;  // [layers, physical]
    MoeTimes times;
    bool timed = false;              // whether OnTimes was called
    std::vector<int32_t> token_ids;  // [group's tokens, layers, top_k]
    std::vector<uint8_t> is_own;     // [group's tokens]
  };

  bool active() const { return recording_ || options_.metrics; }
  // Returns the open pass with this number; null if the pass is not observed.
  const OpenPass* Find(uint64_t pass) const;
  OpenPass* Find(uint64_t pass) { return const_cast<OpenPass*>(std::as_const(*this).Find(pass)); }
  void Close(const OpenPass& pass);
  void Record(const OpenPass& pass, const PassTokens& tokens);
  void RecordTokens(const OpenPass& pass, const PassTokens& tokens, RecordedStep* step) const;
  void CountPass(const OpenPass& pass);
  void UpdateBalancedness();
  void Log(const BalancednessSum& sum);
  ExpertDump WriteDump();

  const ExpertRecorderOptions options_;
  const ExpertRecorderShape shape_;
  RankComm& comm_;
  MessageLane* lane_ = nullptr;  // or null: there is one stage
  const ExpertMap map_;
  const int physical_;  // slots of all ranks, including dispatched shared experts
  const bool by_dispatch_, by_token_;
  const std::vector<int32_t> owner_;              // [physical] EP rank
  const std::vector<int32_t> local_to_physical_;  // physical expert of each of this rank's experts
  SlotMap slots_;                                 // map for passes that begin from now on

  bool recording_ = false;
  int64_t passes_ = 0, counted_passes_ = 0;
  std::vector<std::unique_ptr<OpenPass>> open_;  // in the order in which they began
  std::vector<std::unique_ptr<OpenPass>> free_;  // memory of passes that have ended
  // Counts of the pass that is ending.
  std::vector<int32_t> logical_;  // [layers, experts] counts by logical expert
  std::vector<int32_t> by_rank_;  // [layers, EP ranks] counts by the rank of the slot
  std::vector<float> reduced_;    // [layers, EP ranks]
  // [layers · (experts + EP ranks)] counts summed over all counted passes: first logical_, then
  // by_rank_.
  std::vector<int64_t> total_;
  MoeTimes total_times_;      // of this rank, in all counted passes with times
  int64_t timed_passes_ = 0;  // the number of these passes
  RecordedSteps steps_;
  BalancednessWindows windows_;
};

}  // namespace switchyard
