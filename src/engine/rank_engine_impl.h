// The state of a rank's engine. Internal to rank_engine.cc and process_pass.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_cache/kv_cache.h"
#include "engine/rank_engine.h"
#include "engine/rank_grammars.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculative/draft_tree.h"
#include "engine/speculative/grammar_drafter.h"

namespace switchyard {

struct RankEngine::Impl {
  Impl(Options options, ForwardFunction& model);

  void Enqueue(const EngineRequest& request);
  void Abort(uint64_t id);
  // Prefill and decode on different engines (imported_requests.cc).
  void Start(const StartImported& start);
  void Release(const ReleaseKv& release);
  // The answer; nullopt: the request is not open here.
  std::optional<RequestOutput> Want(const WantKv& want);
  // Controls of the scheduler (rank_controls.cc). Appends the outputs of ended passes and requests,
  // then the answer.
  void Set(const SetControls& set, std::vector<EngineMessage>* messages);
  // Appends the outputs of ended passes and requests. Then resets requests, prefixes, grammars and
  // controls (rank_controls.cc).
  void Reset(std::vector<EngineMessage>* messages);
  // Whether FlushCache may remove all prefixes: no request has pages.
  bool CanFlush() const;
  // Ends all passes in flight.
  void Collect();
  // Adds the pages of imports that got them in this step, and of exports that were retracted.
  void AnswerPages(int64_t retractions_before);
  void AnswerRetractedPages();
  // With several passes in flight: the pages of an import are given once all passes up to `pass`
  // have ended, which may write to them.
  struct LateImport {
    uint64_t id = 0, pass = 0;
  };
  std::deque<LateImport> late_imports;
  void AnswerImport(const Sequence& sequence);
  void AnswerLateImports(uint64_t ended_pass);
  KvPages Export(Sequence& sequence) const;
  // An output that has only pages.
  RequestOutput PagesOutput(const Sequence& sequence, KvPages pages) const;
  StepCounts Plan();
  StepOutputs Run(std::span<const StepCounts> groups);
  void SetGroups(std::span<const StepCounts> groups);
  std::span<const float> Forward();
  void Launch();
  bool HasWork() const {
    return (!controls.paused && scheduler.runnable()) || !answers.empty() || launched ||
           !staged.empty();
  }
  EngineStats Stats() const;

  // Throws Error kInvalid if the request can never run.
  void CheckRequest(const EngineRequest& request) const;
  void CheckOutput(const EngineRequest& request) const;
  // The logit rows of a pass, as logits or as the tokens that the model sampled from them.
  struct Rows {
    std::span<const float> logits;   // [rows, width]
    std::span<const int32_t> drawn;  // [rows], −1: a logit is not finite
    bool finite() const;
  };
  // Enables sampling in the model, if the model supports it and no row of the batch needs its
  // logits on the host.
  void RequestDeviceSampling();
  // Writes one log line every --decode-log-interval steps with decoding.
  void LogDecoding();
  // A sequence's part of a pass. The sequence may end before the pass does.
  struct Part {
    uint64_t id = 0;
    int64_t rows = 0, end = 0;  // the rows of positions [end − rows, end)
    size_t logit_rows = 0;
    bool decoding = false;
    size_t drafts = 0;       // the last `drafts` of the rows are drafts
    uint64_t admission = 0;  // Sequence::admissions
    // The members below are used by passes of pipeline stages only.
    Range range;           // the rows with logits
    bool last = false;     // no row of the sequence is pending after this part
    bool samples = false;  // the pass gives a token
    // With results_have_drafts: pages are allocated for so many tokens after the known ones.
    int64_t draft_slots = 0;
  };
  // Pipeline stages (pipeline/staged_pass.cc): several passes are in flight. A sequence with a
  // token that is not known yet is not planned, but a prompt's next chunk is.
  struct StagedPass {
    uint64_t number = 0;
    std::vector<Part> parts;
    StepOutputs results;  // one for each part with logit rows; set when computed or received
    bool received = false;
    bool launched = false;  // and not collected
  };
  StepOutputs RunStaged(std::span<const StepCounts> groups, bool runs);
  // Runs or launches the planned batch, as the newest pass in flight.
  void StartStaged(std::span<const StepCounts> groups);
  // Computes and sends the results of the planned batch, on the last stage.
  StepOutputs Evaluate(std::span<const float> logits);
  // With results_have_drafts. All stages reserve the pages for the next drafts before a pass, since
  // only the last one knows how many tokens the pass gives. ProposeInResults adds the drafts to the
  // results; the sequences are not changed. TakeDrafts sets those of a sequence on all stages.
  // Reserving may move a sequence's list of pages, so it precedes the batch.
  int64_t ReserveDrafts(const ScheduledRows& part);
  void ProposeInResults(StepOutputs& results);
  void TakeDrafts(Sequence& sequence, RequestOutput& result);
  // Waits for the end of a launched pass, and sends its results on the last stage. No effect on
  // other passes. At most one pass is launched and not collected when the next one starts.
  void CollectStaged(StagedPass& pass);
  void SendResults(const StepOutputs& results);
  // On the last stage: keeps the chosen experts of a part for the sequence's next result.
  // `first_row`: the part's first row in the batch.
  void KeepRouted(Sequence& sequence, const Part& part, int64_t first_row) const;
  // On the last stage: the result of a part with drafts, which has one or more tokens. The state of
  // the sequence in its grammar advances; its tokens do not.
  RequestOutput ResultOfDrafts(Sequence& sequence, const Part& part, const Rows& own);
  // Applies the result of a part with drafts, on all stages.
  void ApplyDrafts(Sequence& sequence, const Part& part, RequestOutput& result);
  // Converts the rows of a part to an output. It has tokens and log-probabilities. After the last
  // part of a pooled request it has the pooled vector. With kError, `error` is empty if a logit is
  // not finite.
  RequestOutput ResultOf(Sequence& sequence, const Part& part, const Rows& own);
  // Advances the sequences of the planned batch as far as possible before its results are known.
  void AdvanceStaged();
  // Processes the results of the oldest pass in flight.
  void ProcessStaged();
  // On stages without logits: receives the results of a pass, unless they were received before.
  void ReceiveResults(StagedPass& pass);
  // Number of positions of a part's rows that give log-probabilities of the prompt.
  static int64_t PromptLogprobs(const Sequence& sequence, const Part& part);
  // `result`: null for a part without logit rows.
  void ApplyResult(Sequence& sequence, const Part& part, RequestOutput* result);
  void FinishStaged(Sequence& sequence, const Part& part, RequestOutput& result);
  // Whether the planned batch needs its logits on the host.
  bool NeedsLogits() const;
  // Whether the planned batch has rows that another engine reads. Such a batch is not launched
  // ahead: its rows are announced as computed, so its pass has to end first.
  bool Exports() const;
  // Sets the queue time of the sequences that were planned for the first time.
  void MeasureQueue();
  // Whether the next pass can be planned before the planned pass ends.
  bool CanLaunch(std::span<const StepCounts> groups) const;
  // Advances the sequences of the planned batch as far as possible while its tokens are unknown.
  void AdvanceLaunched();
  // Undoes AdvanceLaunched.
  void RevertLaunched();
  // Fills `masks` for the rows of a pass whose tokens the model samples. A sequence whose grammar
  // has failed gets no mask, and its token is not used.
  void FillMasks(std::span<const Part> pass);
  // Whether the planned batch samples a token that a grammar constrains.
  bool PlansGrammars() const;
  // Processes the tokens that a launched pass has sampled.
  void ProcessLaunched(std::span<const Part> launched);
  void ProcessDrawn(Sequence& sequence, const Part& part, int32_t token);
  // The launched pass of the sequence's rows before position `end` has ended.
  void Settle(Sequence& sequence, int64_t end);
  // The router faults of the sequences of a launched pass, by id.
  std::map<uint64_t, std::string> FaultsOf(std::span<const Part> launched);
  // Processes the results of the planned batch's pass.
  void ProcessPass(Rows all);
  // Processes one sequence's part of a pass, row by row.
  void Finish(Sequence& sequence, const Part& part, const Rows& own);
  // Samples the tokens of a part with drafts, as separate decode steps would, until no draft has
  // the token. `first_row`: the part's first row in the batch.
  void Verify(Sequence& sequence, const Part& part, const Rows& own, int64_t first_row);
  // The loop of Verify over the rows of a path of the tree. Appends these rows to `path`. Sets
  // output.drafts: `drafted` counts the rows of the path that have drafts. Returns the error that
  // ends the request and sets `kind`; empty: none.
  std::string SampleDrafts(Sequence& sequence, const DraftTree& tree, const Rows& own,
                           std::vector<int32_t>& path, RequestOutput& output, ErrorKind& kind);
  // Adds a verification to the counts by position. `path`: as SampleDrafts returns. `depth`: the
  // maximum number of drafts on a path of the tree.
  void CountVerified(const DraftCounts& path, size_t depth);
  // Moves the rows of the kept path of a tree to the slots of their positions.
  void MoveKeptRows(const Sequence& sequence, std::span<const int32_t> path);
  // Proposes tokens after a pass: those that grammars force, and those of the drafter for the other
  // sequences. Called on every rank of the world.
  void ProposeDrafts(std::span<const Part> pass);
  // The open sequences of a pass, with the drafts that grammars force.
  std::vector<DraftPart> ProposeForced(std::span<const Part> pass);
  // Maximum number of drafts that the sequence can use in its next step, at most `limit`.
  int64_t WantedDrafts(const Sequence& sequence, int64_t limit) const;
  // `first_row`: the part's first row in the batch. `path`: its rows relative to first_row; empty:
  // all rows.
  void AppendRoutedExperts(Sequence& sequence, const Part& part, int64_t first_row,
                           std::span<const int32_t> path = {});
  // Appends the log-probabilities of `token` in the last row of `logits`, if the request wants them
  // and this rank sends them.
  void AppendLogprobs(const Sequence& sequence, std::span<const float> logits, int32_t token,
                      std::vector<PositionLogprobs>& to) const;
  void AppendInputLogprobs(Sequence& sequence, Range rows, std::span<const float> logits);
  // Adds rows of a pooled sequence to its sum. `own` [rows, width].
  void AddPooled(Sequence& sequence, std::span<const float> own) const;
  std::vector<float> PooledOf(const Sequence& sequence) const;
  void FinishPooled(Sequence& sequence, std::vector<float> pooled);
  void SampleToken(Sequence& sequence, const Rows& own);
  // Returns nullopt if penalties, biases and the grammar exclude all tokens.
  std::optional<int32_t> Draw(Sequence& sequence, const Rows& own);
  static std::string WhyNoToken(const Sequence& sequence);
  // Sets `output.finish` if `token` or the length ends the sequence. `length`: the length of the
  // sequence, `token` included.
  void CheckFinished(const Sequence& sequence, int32_t token, int64_t length,
                     RequestOutput& output) const;
  RequestOutput NewOutput(Sequence& sequence) const;
  void Fail(Sequence& sequence, const std::string& error, ErrorKind kind = ErrorKind::kResource);
  void FailNotFinite(Sequence& sequence);
  static std::string NotFiniteError(const Sequence& sequence);
  // Appends a sampled token to the output's grammar, if there is one. Returns false if the grammar
  // has failed, and ends the sequence.
  bool AcceptToken(Sequence& sequence, int32_t token);
  void Close(Sequence& sequence, bool discard);

  const Options options;
  ForwardFunction& model;
  const int64_t vocab, width;  // number of ids; elements of a row of the model's output
  KvCache cache;
  Scheduler scheduler;
  Sampler sampler;
  RankGrammars grammars;
  // Maximum length of a sequence: the last token's key and value need a slot too.
  const int64_t max_length;
  std::map<uint64_t, Sequence> table;   // open requests; nodes have stable addresses
  std::vector<RequestOutput> answers;   // returned at the end of the next step
  std::span<const ScheduledRows> plan;  // owned by the scheduler, valid between Plan and Run
  std::vector<Part> parts;              // parts of the planned batch
  // The last launched pass, until its tokens are collected.
  struct LaunchedPass {
    uint64_t pass = 0;
    std::vector<Part> parts;
  };
  std::optional<LaunchedPass> launched;
  bool reverts_states = true;       // whether the states are those of AdvanceLaunched
  std::deque<StagedPass> staged;    // passes of pipeline stages in flight, oldest first
  uint64_t last_pass = 0;           // the number of the last pass
  bool forwards = false;            // whether the model's Forward runs now
  TokenMasks masks;                 // masks of the next pass that samples tokens
  ForwardBatch batch;               // reused between steps to keep its allocations
  std::vector<std::string> faults;  // [sequences] of the last pass, or empty
  EngineStats counters;
  GrammarDrafter grammar_drafter;
  EngineControls controls;
  const int64_t max_forced;   // 0: grammars force no drafts
  int64_t open_grammars = 0;  // open requests with a grammar
  // The maximum number of drafts of a sequence; of a path, if drafts are trees.
  int64_t most_drafts() const {
    return options.tree_depth > 0 ? options.tree_depth : options.max_drafts;
  }
  // Whether there is speculative decoding, also with the drafter on another stage.
  bool speculates() const { return options.drafter || options.results_have_drafts; }
  // Current maximum number of drafts of a sequence; at most most_drafts().
  int64_t draft_limit;
  // Counters for --decode-log-interval.
  int64_t decode_steps = 0, logged_tokens = 0;
  std::chrono::steady_clock::time_point last_log = std::chrono::steady_clock::now();
};

}  // namespace switchyard
