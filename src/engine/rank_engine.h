// One rank's engine: turns requests into batches, and batches into tokens. It handles neither text
// nor sockets.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/check.h"
#include "engine/config.h"
#include "engine/request.h"
#include "engine/scheduler/policy.h"
#include "engine/scheduler/prefill_pace.h"
#include "engine/speculative/draft_pace.h"
#include "profile/profiler.h"

namespace switchyard {

class Drafter;
class PageRecords;

// The model interface of the scheduler; tests substitute a fake.
class ForwardFunction {
 public:
  virtual ~ForwardFunction() = default;
  // Logits [batch.logit_rows, output_width]; valid until the next call. Empty if the pass was
  // aborted.
  virtual std::span<const float> Forward(const ForwardBatch& batch) = 0;
  // Aborts the pass with this number (ForwardBatch::pass), and discards its results. The pass is
  // either running in Forward (Model::AbortPass) or the only launched pass. If it was launched, the
  // call waits until it ends.
  virtual void AbortPass(uint64_t /*pass*/) {}
  virtual bool aborted() const { return false; }  // whether the last Forward's pass was aborted
  virtual int64_t vocab_size() const = 0;
  // The model's pooling. If it is not kNone, all requests are pooled (EngineRequest::pooling).
  virtual Pooling pooling() const { return Pooling::kNone; }
  // Elements of a row that Forward returns (ModelConfig::output_width).
  virtual int64_t output_width() const { return vocab_size(); }
  // Whether the model samples tokens itself for a batch with `draws` (Model::draws).
  virtual bool draws() const { return false; }
  virtual std::span<const int32_t> drawn() const { return {}; }
  // Whether passes can be launched. Then a batch may have ForwardBatch::token_rows.
  virtual bool launches() const { return false; }
  // Whether all attention groups must launch a pass or none, because their ranks exchange data when
  // it ends.
  virtual bool launches_together() const { return false; }
  // Model::Launch and Model::Collect: a launched pass overlaps the planning of the next pass.
  virtual void Launch(const ForwardBatch&) {}
  virtual std::span<const int32_t> Collect() { return {}; }
  // Routed experts [T, routed_width] of the last batch, if that batch requested them
  // (Model::routed_experts).
  virtual std::span<const int32_t> routed_experts() const { return {}; }
  virtual int64_t routed_width() const { return 0; }  // layers · top_k; 0: no experts
  // Pipeline stages. Maximum number of passes in flight; 1: Forward returns the results of its
  // pass. With more, Forward runs the layers of this stage, and only has_logits() stages get
  // logits. From the logits, or from drawn tokens, the engine computes the results, and sends them
  // to the other stages in the order of passes. All stages may launch passes; those without logits
  // get batches without `draws`, and Collect only waits for the end of the pass.
  virtual int passes_in_flight() const { return 1; }
  virtual bool has_logits() const { return true; }
  virtual void SendResults(const std::string& /*bytes*/) {}
  virtual std::string ReceiveResults() { return {}; }
  // On stages without logits: sends results that were received to the next stage that needs them.
  virtual void PassOnResults(const std::string& /*bytes*/) {}
  // Whether the receiver of SendResults sends answers to the front. Only then the results need
  // log-probabilities and the vectors of pooled requests, which may be large.
  virtual bool sends_values() const { return true; }
  // Copies rows of the cache. With trees of drafts, the engine calls it after a pass, equally on
  // every rank of the group.
  virtual void MoveRows(std::span<const SlotMove>) { CHECK(false); }
  // For each sequence of the last batch, a text that names layer and expert of the first router
  // score that is not finite; empty: none. Collective of the attention group. Call it after a
  // Forward whose logits are not finite.
  virtual std::vector<std::string> RouterFaults(const ForwardBatch&) { return {}; }
};

// The counts of a group's batch that the other attention groups need.
struct StepCounts {
  int64_t tokens = 0, decode_tokens = 0, logit_rows = 0;
  int64_t decoding = 0;        // sequences that decode; with drafts, each has several decode tokens
  int64_t routed_experts = 0;  // 1 if requested
  // 1 if the batch is not launched, because its logits are needed on the host, or it has rows that
  // another engine reads.
  int64_t host_logits = 0;
};

// Maximum logit rows of one pass with prompt logprobs, or with means over prompts: 256 MiB of
// float32. A pass may have more logit rows for decoding, one for each running request. `width`:
// elements of a row.
int64_t MaxLogitRows(int64_t width);

// Maximum prompt rows of one step: `chunk`, limited by `max_prefill_tokens` (0: no second limit).
// `chunk` -1 means whole prompts, so the result is at least `context_length`.
int64_t MaxPromptRows(int64_t chunk, int64_t max_prefill_tokens, int64_t context_length);

// Deterministic: if all ranks of an attention group get the same messages before the same steps,
// they have the same batches and outputs (decisions depend on ids, not clocks). Owns scheduler,
// page pool, radix cache and sampler; borrows the model. Used by the rank's thread only.
class RankEngine {
 public:
  struct Options {
    int32_t page_size = 16;
    int64_t num_pages = 0;
    // Slots of recurrent states: those of running requests, the others for cached prefixes
    // (StateSlots::TotalFor). 0: the model has no such states. They exclude trees of drafts, drafts
    // of grammars, and drafts with several passes in flight.
    int64_t num_states = 0;
    // Rows of a chunk, if rows of prompts are chunked (KvCache). A step has room for a chunk. 0:
    // no.
    int32_t state_chunk = 0;
    // Slots of num_states for requests whose pages another engine reads or writes (KvRole).
    int64_t held_states = 0;
    int32_t max_running_requests = 256;
    int32_t chunked_prefill_size = 2048;
    int64_t max_prefill_tokens = 0;  // --max-prefill-tokens; 0: no second limit
    SchedulePolicy policy = SchedulePolicy::kFcfs;
    double conservativeness = 1.0;  // --schedule-conservativeness
    double target_step_ms = 0;      // --target-step-ms: −1: derived, 0: none
    // With several passes in flight: maximum number of decoding requests in one of them; 0: an
    // equal part of the decoding requests.
    int64_t max_micro_batch = 0;
    double chunk_keys = 0;    // see PrefillBudget::keys
    bool priorities = false;  // --enable-priority-scheduling
    int64_t preemption_threshold = 10;
    int32_t decode_log_interval = 0;  // decode steps between log lines; 0: no lines
    bool enable_radix_cache = true;
    // Records of the KV pages that remain when the process ends; they outlive the engine. The
    // engine starts with the recorded prefixes in its cache, so all ranks of a group must have the
    // same records. Null: no records, as on ranks that launch passes.
    PageRecords* records = nullptr;
    bool overlap_schedule = true;  // false: --disable-overlap-schedule
    int64_t context_length = 0;
    std::vector<int32_t> eos_token_ids;
    uint64_t random_seed = 0;
    int64_t max_logit_rows = 0;  // 0: MaxLogitRows
    // Speculative decoding: maximum number of drafts of a sequence in a step, and their source,
    // which outlives the engine. Null: none. With a drafter, steps are not launched ahead, and the
    // engine reads all logits on the host.
    int32_t max_drafts = 0;
    Drafter* drafter = nullptr;
    // With pipeline stages: passes without logit rows have results too, which are empty. So all
    // stages know which passes have ended on the last stage. Needed for KvRole::kImport: another
    // engine must not write pages that a pass in flight may still write.
    bool all_results = false;
    // With pipeline stages: the results of a pass carry the drafts of the next tokens. Then only
    // the last stage has a drafter, which is called right after the pass, because a draft model
    // reads its hidden rows. Drafts are chains. false: all stages have a drafter, or none.
    bool results_have_drafts = false;
    // For trees of drafts: maximum number of drafts on a path, and number of cache slots that a
    // tree needs after the last token (DraftLimits). 0: drafts are chains.
    int32_t tree_depth = 0, tree_slots = 0;
    bool adapt_drafts = false;  // DraftPace selects the number of drafts
    // Maximum number of drafts that the grammar of a sequence forces in a step (GrammarDrafter); 0:
    // none. A sequence with forced drafts gets none from `drafter`. Has no effect if the model
    // samples tokens itself.
    int32_t max_forced = 0;
    // For benchmarks: the probability with which a draft is accepted, whatever token is sampled.
    // Outputs are then wrong. Negative: drafts are compared with sampled tokens.
    double simulate_acceptance = -1;
    int32_t group = 0;  // this rank's attention group; other groups' requests are ignored
    // false: log-probabilities are not computed, because another rank of the group sends outputs.
    bool log_probabilities = true;
    // Records plan, forward pass and sampling; outlives the engine. Null: nothing is recorded.
    profile::Profiler* profiler = nullptr;
  };
  RankEngine(Options options, ForwardFunction& model);
  ~RankEngine();

  // Applies messages in order. Returns the answers to FlushCache, GetStats and SetControls.
  // ChangeCache only resets the engine, and its answer comes from ApplyToCaches. If
  // SetControls pauses the engine, the outputs of the passes in flight precede its answer. A
  // request that can never run (longer than the cache or the context) gets an output with kError in
  // the next Step.
  std::vector<EngineMessage> Apply(const std::vector<ControlMessage>& messages);
  bool HasWork() const;
  // Plans one batch. The batch has no tokens if no request is open.
  StepCounts Plan();
  // The rows of KvRole::kExport that the planned batch computes (RequestOutput::kv). Call it
  // between Plan and Run.
  std::vector<RequestOutput> Announced() const;
  // Runs the planned batch and returns outputs of requests. `groups` [dp] has the counts of all
  // groups, this one included; empty: there is a single group. The model runs if any group has
  // tokens. With several passes in flight (pipeline stages), the planned batch is started, and the
  // outputs are those of the oldest pass. With an overlapped schedule, a batch whose tokens the
  // model samples is only launched. Its outputs are returned by the next Run, which launches its
  // own batch first. So the host plans, and sends outputs, while the device computes (NanoFlow;
  // SGLang's overlap scheduler). If the model throws, the engine is as before Plan, except that
  // pages may be allocated.
  StepOutputs Run(std::span<const StepCounts> groups = {});
  // Whether a launched batch has outputs that are still to be returned.
  bool launched() const;
  bool launches() const;  // whether the model can run passes ahead, as on a GPU
  // The requests of the planned batch and of the launched one; an id may appear twice.
  std::vector<uint64_t> InFlight() const;
  // Between two steps: ends all batches in flight, and returns their outputs.
  StepOutputs Collect();
  // The values of the last SetControls.
  bool paused() const;
  std::chrono::duration<double> step_delay() const;
  // The number of the last pass (ForwardBatch::pass), the same on all ranks; 0 before the first
  // one.
  uint64_t last_pass() const;
  // Aborts the pass with this number. All ranks of the world must call it at the same point:
  // between two steps for a launched pass; within the model, before the same operation, for the
  // pass that Run runs. The pass gives no tokens. A later step plans its rows again under a new
  // number, with the same results. Returns false if the pass is not in flight. With recurrent
  // states, it is also false for a launched pass after a further pass was planned and threw.
  bool AbortPass(uint64_t pass);
  // Limits the prompt rows of steps with decoding requests. nullopt if there is no target time or
  // no chunk size.
  std::optional<PrefillPace> prefill_pace() const;
  // Selects the number of drafts; nullopt if the number is fixed.
  std::optional<DraftPace> draft_pace() const;
  int32_t draft_limit()
      const;  // current maximum number of drafts of a sequence; 0 without a drafter
  std::span<const int64_t> accepted_drafts() const;  // EngineStats::accepted_by_position
  int64_t running() const;                           // number of running requests
  // Whether the draft model's backlog (rows that it has not computed) is at most the number of
  // tokens still to generate. With a larger backlog, drafts would save less time than these rows
  // take.
  bool DraftsPayBacklog() const;
  StepOutputs Step() {
    Plan();
    return Run();
  }
  EngineStats Stats() const;
  // Whether all pages are free or in the radix tree and nothing is locked. Must hold when no
  // request is open.
  bool PoolIsWhole() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The loop of one rank. The leader receives messages through `receive` (blocking up to its argument
// in milliseconds), broadcasts them to all ranks, and sends the answers of all attention groups
// through `send`. Loads the model first (the leader sends progress and RankReady). Runs on both
// thread ranks and process ranks. Returns after Shutdown. An Error on any rank aborts the arena and
// is rethrown. If the arena has epochs and another rank fails, this rank keeps its weights, waits
// for the next epoch, and serves again.
struct RankLoopIo {
  std::function<std::vector<ControlMessage>(std::chrono::milliseconds)> receive;  // leader only
  std::function<void(const EngineMessage&)> send;                                 // leader only
  // Connects to the front of the next epoch, of which this rank is the leader; with an empty
  // endpoint, only closes the present connection. Null: there is one epoch.
  std::function<RankLoopIo(const std::string& endpoint)> reconnect;
  // Called on another thread once the first epoch of this process has ended; returns before the
  // next one begins. May be null.
  std::function<void()> after_first_epoch = {};
};
void RunRankLoop(const EngineConfig& config, const EnginePlan& plan, int rank,
                 const std::shared_ptr<SharedArena>& arena, const RankLoopIo& io);
// `kept`: what the process has loaded as a spare, before it got the place of this rank.
struct KeptWeights;
void RunRankLoop(const EngineConfig& config, const EnginePlan& plan, int rank,
                 const std::shared_ptr<SharedArena>& arena, const RankLoopIo& io, KeptWeights kept);

}  // namespace switchyard
