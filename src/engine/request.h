// Message types between front and ranks: requests, control messages and outputs. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/wire.h"
#include "eplb/manager_options.h"
#include "eplb/recorder_options.h"
#include "model/pooling.h"
#include "profile/options.h"

namespace switchyard {

// Sampling parameters. Validated by the front (Validate); ranks trust them.
struct SamplingParams {
  int32_t max_new_tokens = 128;
  int32_t min_new_tokens = 0;  // no end-of-sequence or stop id is sampled before this length
  float temperature = 1.0f;    // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = -1;  // −1: all
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;  // subtracted for each occurrence in the output
  float presence_penalty = 0.0f;   // subtracted once for each token in the output
  float repetition_penalty =
      1.0f;  // divides positive and multiplies negative logits of prompt and output tokens
  std::optional<uint64_t>
      seed;  // the same seed gives the same tokens whatever else is in the batch
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> allowed_token_ids;  // the only ids that may be sampled; empty: all
  // Each entry is a sequence of ids that the output must not contain: its last id is not sampled
  // directly after its other ids.
  std::vector<std::vector<int32_t>> bad_words;
};

struct LogprobParams {
  bool enabled = false;
  int32_t start = -1;              // first prompt position with logprobs; −1: output only
  int32_t top = 0;                 // number of top alternatives at each position
  std::vector<int32_t> token_ids;  // additional tokens whose logprobs are returned at each position
  bool rank = false;               // return PositionLogprobs::rank
};

// Requests the experts that the router chose for each token (return_routed_experts).
struct RoutedExpertsParams {
  bool enabled = false;
  int32_t start = 0;  // first position to return; at most the prompt's length
};

// Prefill and decode on different engines (docs/disaggregation.md).
enum class KvRole : uint8_t {
  kOwn,  // one engine serves the whole request
  // The request stops after its first token, and its pages stay until ReleaseKv, so that another
  // engine can read them. Until WantKv it may lose its pages; then it computes its prompt again
  // after WantKv.
  kExport,
  // The request gets pages for its prompt. It runs from StartImported on, which follows once the
  // pages have been written.
  kImport,
};

// A request as ranks see it: ids in, ids out. The front handles stop strings.
struct EngineRequest {
  uint64_t id = 0;  // assigned by the front, unique among open requests
  std::vector<int32_t> input_ids;
  SamplingParams sampling;
  LogprobParams logprob;
  RoutedExpertsParams routed_experts;
  // If not kNone, the request ends with its prompt and returns RequestOutput::pooled. The
  // parameters of sampling and log-probabilities do not apply then.
  Pooling pooling = Pooling::kNone;
  // The attention group that serves the request (`data_parallel_rank`). Empty until the sender to
  // the ranks assigns a group (DpController). Ranks treat an empty value as group 0.
  std::optional<int32_t> group;
  int32_t priority = 0;    // larger ones go first; see Scheduler::Options::priorities
  std::string cache_salt;  // only requests of equal salt share cached prefixes
  uint64_t grammar = 0;    // DefineGrammar::id of the grammar of the output; 0: none
  // If the front sends a request again to new ranks: the output so far. The request resumes after
  // these tokens, like a retracted request. Fewer tokens than sampling.max_new_tokens.
  std::vector<int32_t> output_ids;
  int32_t cached_tokens = 0;  // with output_ids: RequestOutput::cached_tokens so far
  KvRole kv = KvRole::kOwn;   // with output_ids: kOwn
};

// Messages to the ranks, in one ordered stream. Every rank applies the same messages before the
// same step, which keeps the schedulers of an attention group equal without sending batches. A
// request is for the ranks of its group; all other messages are for every rank.
struct AbortRequest {
  uint64_t id = 0;
};
struct FlushCache {
  uint64_t ticket = 0;  // echoed in the answer
};
struct GetStats {
  uint64_t ticket = 0;
};
enum class RecordAction : uint8_t { kStart, kStop, kDump };
struct RecordExperts {  // ExpertRecorder (eplb/recorder.h)
  uint64_t ticket = 0;
  RecordAction action = RecordAction::kStart;
};
struct GetExpertLoad {
  uint64_t ticket = 0;
};
struct RebalanceExperts {  // EplbManager::Rebalance (eplb/manager.h)
  uint64_t ticket = 0;
};
struct GetEplb {
  uint64_t ticket = 0;
  bool slots = false;  // the answer has EplbReport::slots
};
struct GetWeightChecksums {  // ApplyToWeights (engine/weight_checksums.h)
  uint64_t ticket = 0;
};
// Frees the memory of the KV cache, or allocates it again (ApplyToCaches, engine/cache_memory.h).
// Both first reset the engine: it drops all requests without an answer, all prefixes and grammars,
// and the controls. So the ranks have the state of new ranks, except for their weights.
struct ChangeCache {
  uint64_t ticket = 0;
  bool release = false;
};
struct StartProfile {  // Profiler (profile/profiler.h)
  uint64_t ticket = 0;
  profile::Options options;
};
struct StopProfile {
  uint64_t ticket = 0;
};
// What clients may change while the engine serves. A message has all of these values, so that it
// can be sent again to new ranks.
struct EngineControls {
  bool paused = false;  // no pass begins
  // The leader waits before each step for this time, or until the controls change.
  double step_delay_seconds = 0;
  // Of each attention group; 0: the values of RankEngine::Options.
  int64_t max_running_requests = 0, max_micro_batch = 0;

  bool operator==(const EngineControls&) const = default;
};
// What happens to the requests of the ranks when the engine pauses.
enum class PauseAction : uint8_t {
  kNone,     // they keep their pages and continue with their next step
  kRetract,  // running requests lose their pages and return to the queue
  kAbort,    // all requests end with FinishReason::kAbort
};
struct SetControls {
  uint64_t ticket = 0;  // 0: no answer
  EngineControls controls;
  PauseAction action = PauseAction::kNone;
};
// Created by the leader, not the front: the maximum prompt rows of a step with decoding requests
// (PrefillPace).
struct LimitPrefill {
  int64_t rows = 0;
};
// Created by the leader, not the front: the maximum drafts of a sequence (DraftPace).
struct LimitDrafts {
  int32_t drafts = 0;
};
// Precedes the first DefineGrammar.
struct GrammarTokens {
  std::string bytes;  // GrammarVocabulary::Encode
};
// Precedes the first request with the grammar.
struct DefineGrammar {
  uint64_t id = 0;
  std::string bytes;  // CompiledGrammar::ToBytes
};
// Sent after the last request with the grammar. Open requests keep the grammar.
struct DropGrammar {
  uint64_t id = 0;
};
// Ends a request of KvRole::kExport, whose pages are not read any more.
struct ReleaseKv {
  uint64_t id = 0;
  std::string error;  // empty: the other engine has the pages
};
// Another engine has pages for the prompt of a request of KvRole::kExport. If the cache is full,
// requests that no engine has asked for give their pages to this one (Scheduler::Want). The answer
// is an output with the present pages, which are pinned then.
struct WantKv {
  uint64_t id = 0;
};
struct Shutdown {};  // the loop ends after this step

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};
struct PositionLogprobs {
  float logprob = 0.0f;  // logprob of the token at this position; NaN at the first prompt position
  int32_t token = 0;
  int32_t rank = 0;                     // 1: the most likely token; 0: not requested
  std::vector<TokenLogprob> top;        // best first
  std::vector<TokenLogprob> requested;  // LogprobParams::token_ids, in that order
};

enum class FinishReason : uint8_t {
  kNone,    // not finished
  kStop,    // end of sequence or a stop token id; `matched` holds it
  kLength,  // max_new_tokens or the context's end
  kAbort,   // aborted by the front
  kError,   // described by `error`
};

// Counts of the drafts of a request so far.
struct DraftCounts {
  int32_t steps = 0;     // decode steps with drafts
  int32_t drafted = 0;   // drafts in these steps
  int32_t accepted = 0;  // drafts that equalled the sampled tokens

  DraftCounts& operator+=(const DraftCounts& other) {
    steps += other.steps;
    drafted += other.drafted;
    accepted += other.accepted;
    return *this;
  }
};

// Keys and values of the positions [begin, end) of a request, for another engine.
struct KvPages {
  int64_t begin = 0, end = 0;
  std::vector<int32_t> pages;  // [ceil(end / page_size)] of the positions [0, end)
  // KvRole::kExport: the positions before `computed` have their values in all layers. Those of
  // [computed, end) get them layer by layer in the pass with this number (KvProgress); 0: in none.
  // With pipeline stages and a number, passes before it may be in flight, which compute the others.
  int64_t computed = 0;
  uint64_t pass = 0;
  // KvRole::kExport: the request has got WantKv, so it keeps its pages once it has its first token.
  bool pinned = false;
  // Slot of the recurrent states after the last token of the prompt. KvRole::kExport: −1 until all
  // its rows are computed. KvRole::kImport: −1 if there is nothing to write. −1 without states.
  int32_t state = -1;
};

// New output of one request after a step.
struct RequestOutput {
  uint64_t id = 0;
  std::vector<int32_t> new_tokens;  // including the stop token
  FinishReason finish = FinishReason::kNone;
  int32_t matched = -1;  // the stop token id of kStop
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens taken from the radix cache
  // Time from the arrival at the rank to the first admission; −1: not admitted. It has no effect on
  // scheduling, so it may differ between ranks.
  float queue_seconds = -1;
  DraftCounts drafts;  // counts of drafts of speculative decoding
  DraftCounts forced;  // counts of drafts that the grammar forces (jump-forward)
  // Between pipeline stages only: the drafts after new_tokens, if the last stage has a draft model.
  std::vector<int32_t> next_drafts;
  std::vector<PositionLogprobs>
      input_logprobs;  // of positions start .. prompt end; sent with the first output
  std::vector<PositionLogprobs> output_logprobs;  // one for each new token
  // [positions, layers, top_k] logical experts of the positions that the model computed since the
  // previous output, from RoutedExpertsParams::start on. −1: the layer or slot has no expert. The
  // last output token is never computed.
  std::vector<int32_t> routed_experts;
  // [output_width] The result of a pooled request, which has only one output. It is the head's
  // output for the last token, or the mean over all tokens, before activation and normalization.
  std::vector<float> pooled;
  std::string error;                            // error text of kError
  ErrorKind error_kind = ErrorKind::kResource;  // of kError; kInvalid: the request is at fault
  // KvRole::kExport: the positions of the prompt so far, before each pass that computes some of
  // them, and after it. With new_tokens, these are all positions of the prompt. If `end` decreases
  // or a page changes, the request has lost its earlier pages, which may have had other values
  // since.
  // KvRole::kImport: the positions to write, once they have pages. Those before are cached.
  std::optional<KvPages> kv;
};

// Starts a request of KvRole::kImport: the engine that computed the prompt has returned `first`,
// and the pages have its keys and values. The ranks return `first` as their own output. If it is
// finished, or an error, the request ends with it.
struct StartImported {
  uint64_t id = 0;
  RequestOutput first;  // its id and pages are ignored
};

using ControlMessage =
    std::variant<EngineRequest, AbortRequest, FlushCache, GetStats, RecordExperts, GetExpertLoad,
                 RebalanceExperts, GetEplb, GetWeightChecksums, ChangeCache, StartProfile,
                 StopProfile, SetControls, LimitPrefill, LimitDrafts, GrammarTokens, DefineGrammar,
                 DropGrammar, ReleaseKv, WantKv, StartImported, Shutdown>;

struct EngineStats {  // statistics of one attention group
  int32_t running = 0, waiting = 0;
  int64_t waiting_tokens = 0;  // prompt and output so far of the waiting requests
  int64_t total_pages = 0, free_pages = 0,
          cached_pages = 0;  // cached: held by the radix tree alone, evictable
  int32_t page_size = 1;
  int64_t steps = 0, prefill_tokens = 0, cached_prompt_tokens = 0, decode_tokens = 0,
          retractions = 0;
  // Speculative decoding: steps of sequences with drafts, and the outcome of the drafts. An
  // accepted draft equals the sampled token.
  int64_t verify_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  // [positions] drafts verified and accepted at each position after the last known token. A draft
  // is not verified if an earlier one of its step was rejected.
  std::vector<int64_t> verified_by_position, accepted_by_position;
  // Jump-forward decoding: the same numbers for the drafts that grammars force.
  int64_t forced_steps = 0, forced_tokens = 0, accepted_forced_tokens = 0;
};
struct StatsReport {
  uint64_t ticket = 0;
  std::vector<EngineStats> groups;
};
struct FlushResult {
  uint64_t ticket = 0;
  // Whether all groups dropped their prefixes. A group with open requests keeps its prefixes.
  bool done = false;
};
struct RecordResult {
  uint64_t ticket = 0;
  // For kStart and kStop: whether the recording state changed.
  bool changed = false;
  ExpertDump dump;  // result of kDump; kStart and kStop use only `error`
};
struct ExpertLoadReport {
  uint64_t ticket = 0;
  ExpertLoad load;    // total over all ranks
  std::string error;  // why counting is disabled; empty: it is enabled
};
struct EplbReport {  // the answer to RebalanceExperts and GetEplb
  uint64_t ticket = 0;
  EplbStatus status;
  std::string refused;  // the reason for a refused rebalance or a missing status
  // If requested: [layers, slots] the logical expert in each slot; −1 in layers without experts.
  std::vector<int32_t> slots;
};
// The placement of experts has changed, because a layer has moved. Sent without a query.
struct PlacementChanged {
  int32_t ranks = 0;           // EP ranks of the placement; fewer while some ranks are absent
  std::vector<int32_t> slots;  // as EplbReport::slots
};
struct WeightChecksums {  // the answer to GetWeightChecksums
  uint64_t ticket = 0;
  std::vector<std::string> ranks;  // of each rank: lines of a name and a checksum
  std::string error;               // why the weights were not checked; empty: they were
};
struct CacheChanged {  // the answer to ChangeCache
  uint64_t ticket = 0;
  std::string error;  // why the memory stays as it was; empty: it has changed
};
enum class ProfileOutcome : uint8_t {
  kDone,
  kConflict,      // StartProfile: a profile is active; StopProfile: no profile is active
  kBadDirectory,  // a rank cannot write files there; no profile was started
  kNotWritten,    // a rank could not write a file; `result` lists the written ones
};
struct ProfileReport {  // the answer to StartProfile and StopProfile
  uint64_t ticket = 0;
  ProfileOutcome outcome = ProfileOutcome::kDone;
  profile::Result result;  // files of all ranks; after kDone of StopProfile, `error` is empty
};
struct ControlsSet {  // the answer to SetControls; follows the outputs of ended passes
  uint64_t ticket = 0;
  int64_t requests = 0;  // number of requests that were retracted or aborted, over all groups
};
struct StepOutputs {
  std::vector<RequestOutput> outputs;
};
struct RankReady {          // the leader's first message: model loaded, cache allocated
  int64_t total_pages = 0;  // per attention group
  int32_t page_size = 1;
  int32_t max_running_requests = 0;
  int64_t context_length = 0;
};
struct LoadProgress {
  uint64_t done = 0, total = 0;  // bytes of this rank
};
struct EngineFailure {
  std::string what;
  ErrorKind kind = ErrorKind::kResource;  // kInvalid: the checkpoint or a flag is at fault
};
// Messages of the leader to the front.
using EngineMessage =
    std::variant<LoadProgress, RankReady, StepOutputs, StatsReport, FlushResult, EngineFailure,
                 RecordResult, ExpertLoadReport, EplbReport, WeightChecksums, CacheChanged,
                 ProfileReport, ControlsSet, PlacementChanged>;

// Sums over groups; pages of all groups have one size.
EngineStats Total(const std::vector<EngineStats>& groups);

// Serialization (core/wire.h). Decode throws Error kInvalid on malformed bytes.
std::string EncodeControl(const std::vector<ControlMessage>& messages);
std::vector<ControlMessage> DecodeControl(std::string_view bytes);
std::string EncodeMessage(const EngineMessage& message);
EngineMessage DecodeMessage(std::string_view bytes);
std::string EncodeMessages(const std::vector<EngineMessage>& messages);
std::vector<EngineMessage> DecodeMessages(std::string_view bytes);

// A value that Validate refuses. The parameter's name is separate from the problem, since APIs have
// different names for some parameters: what() is "<parameter> <problem>".
class ParameterError : public Error {
 public:
  ParameterError(std::string parameter, std::string problem)
      : Error(ErrorKind::kInvalid, parameter + " " + problem),
        parameter(std::move(parameter)),
        problem(std::move(problem)) {}

  std::string parameter, problem;
};

// Throws ParameterError with the allowed range. `vocab_size` bounds ids.
void Validate(const SamplingParams& params, int64_t vocab_size);
void Validate(const LogprobParams& params, int64_t vocab_size);
void Validate(const RoutedExpertsParams& params, int64_t prompt_length, bool model_has_experts);

}  // namespace switchyard
