// The table of open generations. It connects the HTTP handlers with the ranks.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/dp_controller.h"
#include "engine/request.h"
#include "server/front/generation.h"
#include "server/front/grammars.h"
#include "server/front/questions.h"
#include "server/metrics/request_metrics.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// Error: the prompt leaves no space for output within the context length.
class ContextLengthError : public Error {
 public:
  explicit ContextLengthError(const std::string& what) : Error(ErrorKind::kInvalid, what) {}
};

// How an epoch of the ranks ended.
struct RanksEnd {
  std::string why;
  std::chrono::steady_clock::time_point time{};  // when the end was detected
  // Ranks that ended by a fault signal or an error, so a request of their batch may be the cause.
  // Empty if the epoch ended because of SIGKILL or a missing heartbeat, which have other causes.
  std::vector<int> failed;
  // Request ids of the batch in which the ranks ended; nullopt: unknown.
  std::optional<std::vector<uint64_t>> batch;
  bool by_itself() const { return !failed.empty(); }
  bool Had(uint64_t id) const;  // whether request `id` is, or may be, in `batch`
};

// Sends control messages to the ranks. Their replies arrive through Front::OnMessage.
class RankLink {
 public:
  virtual ~RankLink() = default;
  // Sends the messages in order. Any thread may call it. Never blocks.
  virtual void Send(const std::vector<ControlMessage>& messages) = 0;
};

// Whether a query waits or fails while the ranks cannot respond.
enum class WhenHeld : uint8_t { kWait, kFail };

// Owns the table of open generations; borrows link and tokenizer. Keeps the prompt and the output
// ids of each request until the request finishes, so that new ranks can continue the request
// (Pause, Resume). A token that is not in the table was not sent to a client. The new ranks sample
// the same token again. Submit, Abort and the queries may be called from any thread; OnMessage,
// BeginPause, Pause, PauseForChange, Resume and OnRanksLost from one thread at a time.
class Front {
 public:
  struct Limits {
    int64_t vocab_size = 0;
    int64_t context_length = 0;
    int64_t cache_tokens = 0;          // KV capacity for one request, prompt and output together
    int32_t max_open = 0;              // maximum running and queued requests; 0: no limit
    bool has_experts = true;           // the model has routed experts
    bool keeps_cache = true;           // prefix caches outlive the end of a rank
    Pooling pooling = Pooling::kNone;  // if not kNone, the model serves only pooled requests
    // queue_timeout limits the time until the first token, running_timeout the time after that
    // token. 0: no limit. Neither includes the time while generation is paused (EngineControls).
    std::chrono::duration<double> queue_timeout{0}, running_timeout{0};
  };
  // `controller` chooses the attention group of each request.
  Front(RankLink& link, const Tokenizer& tokenizer, Limits limits, DpController controller = {});
  ~Front();
  // Call before the first request, if this server computes only a part of each request. `transfers`
  // must live as long as the front uses it.
  void Use(KvTransfers* transfers) { transfers_ = transfers; }

  // Throws kInvalid unless the model serves this kind of request. `pooled`: a request for a pooled
  // vector; otherwise a request that generates text.
  void CheckTask(bool pooled) const;
  // Validates `spec`. Throws ParameterError for an invalid field (parameter "prompt" for the
  // prompt), or ContextLengthError. Reduces max_new_tokens to the space left in the context, and
  // min_new_tokens to max_new_tokens.
  void Check(GenerationSpec& spec) const;
  // Validates `spec` and sends the request to the ranks. Returns its id. Throws the errors of
  // Check, ParameterError if a generation of the same name is open, kBusy if the queue is full,
  // and kUnavailable while draining or after the loss of the ranks.
  uint64_t Submit(GenerationSpec spec, GenerationCallback callback);
  // Throws kInvalid if `count` exceeds the limit of open requests, and kBusy if `count` more
  // requests do not fit now.
  void CheckCapacity(size_t count) const;
  // Aborts those generations in `ids` that are still open. They end with FinishReason::kAbort:
  // immediately if the ranks do not have them, else when the ranks have ended them. The callbacks
  // may run within this call.
  void Abort(const std::vector<uint64_t>& ids);
  void AbortNamed(const std::string& name);  // aborts every generation with this name or batch name
  // Limit of running and queued requests together; 0: no limit.
  int32_t max_open() const { return limits_.max_open; }
  // Maximum number of tokens of one request, prompt and output together.
  int64_t longest() const { return std::min(limits_.context_length, limits_.cache_tokens); }
  int64_t AbortAll();  // returns the number of open generations

  void FlushCache(std::function<void(bool done)> callback);
  // Calls `callback` with statistics, one entry per attention group; empty if the ranks are lost.
  // While requests are held, the call is immediate and gives the last known statistics.
  void Stats(std::function<void(const std::vector<EngineStats>&)> callback);

  // Controls the expert recorder. kDump writes the file on the host of rank 0. If the ranks are
  // lost, the result has an error.
  void RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback);
  void GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback,
                     WhenHeld when_held = WhenHeld::kWait);
  // RebalanceExperts starts a rebalance of the experts; GetEplb gets the status of EPLB. If the
  // request is refused or the ranks are lost, the report has the reason.
  void RebalanceExperts(std::function<void(const EplbReport&)> callback);
  // `slots`: the report has EplbReport::slots.
  void GetEplb(std::function<void(const EplbReport&)> callback,
               WhenHeld when_held = WhenHeld::kWait, bool slots = false);
  // Checksums of the weights in the memory of all ranks.
  void GetWeightChecksums(std::function<void(const WeightChecksums&)> callback);
  // Starts or ends a profile on all ranks. If the ranks are lost, the report has an error.
  void StartProfile(profile::Options options, std::function<void(const ProfileReport&)> callback);
  void StopProfile(std::function<void(const ProfileReport&)> callback);
  // Changes what clients may control (EngineControls), now and on the ranks of later epochs.
  // `change` modifies the present values. With PauseAction::kAbort, all open requests end with
  // kAbort. Calls `callback` when the ranks have applied the change; false: the ranks are lost.
  void ChangeControls(const std::function<void(EngineControls*)>& change, PauseAction action,
                      std::function<void(bool done, const ControlsSet&)> callback);
  // Like ChangeControls, for a time without ranks: changes the values that Resume sends to the next
  // ranks. Returns the number of aborted requests. nullopt: there are ranks, so nothing was
  // changed.
  std::optional<int64_t> ChangeHeldControls(const std::function<void(EngineControls*)>& change,
                                            PauseAction action);
  EngineControls controls() const;

  metrics::RequestMetrics& request_metrics() { return metrics_; }

  // The version of the ranks' weights (--weight-version), for responses. Set it while the front is
  // paused, or before the first request.
  void SetWeightVersion(std::string version);
  std::string weight_version() const;

  // For transfers: StartImported, ReleaseKv and WantKv, unless the request has ended or was
  // aborted.
  void StartImported(uint64_t id, RequestOutput first);
  void ReleaseKv(uint64_t id, const std::string& error);
  void WantKv(uint64_t id);

  void OnMessage(const EngineMessage& message);
  // Call when a rank has ended. Nothing is sent until Resume. Open requests and queries are kept,
  // and new ones are accepted. An abort ends a request immediately. `ended`: when the rank ended.
  void BeginPause(std::chrono::steady_clock::time_point ended);
  // Call when all ranks have ended their epoch and new ranks will start. Begins the pause if it has
  // not begun. If a rank ended by itself, the requests of its batch become suspects. After Resume,
  // each suspect first runs alone for a few tokens. It ends with an error if the same rank fails a
  // second time, while the suspect runs alone. The first failure of another rank is not enough,
  // because its fault may be older. A query that two ends of ranks have interrupted ends with an
  // error. Returns the number of consecutive ends in which the ranks had requests and sent no
  // output; 0 if this end is not one of them. After several such ends, SIGKILL and stalls make
  // requests suspects too, because the kernel may kill ranks for the memory that a request needs.
  int Pause(const RanksEnd& end);
  // Like Pause, for a planned change. The ranks of the last epoch must send no more messages.
  // `since`: when these ranks were ended. `groups`: the number of attention groups of the next
  // ranks. If the number changes, the open requests are balanced over the new groups. A request
  // pinned to group g, which no longer exists, moves to group g modulo `groups`. `caches_stay`: as
  // after the end of a rank; else the next ranks have empty caches.
  void PauseForChange(std::chrono::steady_clock::time_point since, int groups,
                      bool caches_stay = false);
  // While paused: the attention groups that the next epoch runs without. Their open requests move
  // to the other groups.
  void SetAbsentGroups(std::span<const int> groups);
  // Whether the present ranks have sent an output, or have nothing to do.
  bool Progressed() const;
  // Holds back the requests that arrive from now on until EndHold, also in later epochs. The
  // requests that are open now continue.
  void HoldNew();
  // After HoldNew: whether all requests that were open then have ended.
  bool Drained() const;
  // Ends HoldNew, and sends the requests that were held back unless the front is paused.
  void EndHold();
  // Call when the link is connected to new ranks. Sends the open queries again, then the open
  // requests with their output, in the order of their ids.
  void Resume();
  RankHistory history() const;
  // Ends every open generation with FinishReason::kError and `why`. Later calls of Submit fail.
  void OnRanksLost(const std::string& why);

  // Ends requests that have exceeded a timeout (Limits) with ErrorKind::kUnavailable. Call
  // periodically.
  void AbortOverdue();

  void StartDraining();  // Submit throws kUnavailable afterwards
  bool draining() const { return draining_; }
  bool ranks_lost() const { return lost_; }
  size_t open() const;
  std::vector<int64_t> open_by_group() const;
  bool WaitUntilIdle(std::chrono::milliseconds timeout);

 private:
  struct Open;
  Error Full() const;
  void CheckPrompt(const std::vector<int32_t>& ids, bool pooled) const;
  void CheckFields(GenerationSpec& spec) const;
  uint64_t SubmitChecked(GenerationSpec spec, GenerationCallback callback);
  void CheckTransfer(const GenerationSpec& spec) const;
  void OpenTransfer(Open& open);  // requires mutex_
  // Sends `message` about an open request of `role`.
  void SendTransfer(uint64_t id, KvRole role, ControlMessage message);
  void ReleaseName(const std::string& name);
  bool IsNameTaken(const GenerationSpec& spec) const;
  int64_t AbortWhere(const std::function<bool(const Open&)>& chosen);
  // A request that the front ends itself, because the ranks do not have it.
  struct Ending {
    std::shared_ptr<Open> open;
    RequestOutput last;
    std::string overdue;  // see Open::overdue
    bool suspect = false;
  };
  // Appends the request to `endings`, to end it with output `last`, unless it is ending already.
  // Requires mutex_.
  void Finish(Open& open, RequestOutput last, std::vector<Ending>* endings);
  void EndTransfer(Open& open, std::vector<Ending>* endings);
  // Aborts one request. Requires order_ and mutex_.
  void Abort(Open& open, std::vector<Ending>* endings, std::vector<ControlMessage>* aborts);
  void End(const std::vector<Ending>& endings);
  // Changes controls_. Requires mutex_.
  void SetControlValues(const std::function<void(EngineControls*)>& change);
  // Whether the front holds requests and queries back instead of sending them. Requires mutex_.
  bool held() const { return paused_ || !suspects_.empty(); }
  // Whether HoldNew holds back the request. Requires mutex_.
  bool HeldBack(uint64_t id) const { return hold_after_ && id > *hold_after_; }
  std::vector<EngineStats> HeldStats() const;  // requires mutex_
  int EndedWithoutAnswer(const RanksEnd& end);
  void Regroup(int groups);  // requires mutex_
  std::vector<EngineStats> StatsOfAllGroups(std::vector<EngineStats> serving) const;
  bool IsCause(const Open& suspect, const RanksEnd& end, int no_output_ends) const;
  void Deliver(const RequestOutput& output, metrics::Clock::time_point now);
  void Take(Open& open, const RequestOutput& output, const std::string& overdue,
            metrics::Clock::time_point now);
  // Appends the control messages of the request, including grammar definitions. Requires order_ and
  // mutex_.
  void Append(Open& open, std::vector<ControlMessage>* messages);
  // Sends the requests that the ranks do not have, or one suspect alone. Requires order_.
  void SendUnsent();
  void EndTrial(uint64_t id);
  void Measure(Open& open, const RequestOutput& output, int32_t tokens_before, bool overdue,
               metrics::Clock::time_point now);
  // Sends a query. Throws kUnavailable if the ranks are lost already. `if_lost` makes the response
  // if they are lost later. `if_held` makes it while requests are held; null: the query waits.
  template <typename Answer, typename Message>
  void Ask(Message message, std::function<void(const Answer&)> callback,
           std::function<Answer(const std::string& why)> if_lost,
           std::function<Answer()> if_held = nullptr);

  RankLink& link_;
  const Tokenizer& tokenizer_;
  const Limits limits_;
  KvTransfers* transfers_ = nullptr;
  std::atomic<bool> draining_{false}, lost_{false};
  metrics::RequestMetrics metrics_;

  // Held while controls are changed and sent, so that the ranks get the changes in their order.
  // Lock order: before order_.
  std::mutex changes_order_;
  // Held from the insertion of a request into open_ until the request is sent, so that an abort is
  // never sent before its request. Also held while requests are selected and sent after a pause.
  // Lock order: before mutex_.
  std::mutex order_;
  DefinedGrammars grammars_;  // guarded by order_

  mutable std::mutex mutex_;  // guards all members below; never held while a callback runs
  std::condition_variable idle_;
  DpController controller_;
  int absent_groups_ = 0;
  std::map<int, metrics::Clock::time_point> absent_since_;  // by absent group
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<Open>> open_;
  std::map<std::string, int> names_;  // number of open generations of each name
  Questions questions_;
  EngineControls controls_;
  std::optional<metrics::Clock::time_point> stopped_since_;  // set while controls_.paused
  std::string lost_reason_;
  bool paused_ = false;  // between two epochs of the ranks: nothing is sent
  std::string weight_version_;
  std::optional<uint64_t> hold_after_;  // set by HoldNew: requests with larger ids are not sent
  // Open requests that were in the batch of a rank that ended by itself. While the set is not
  // empty, the ranks have only its first request.
  std::set<uint64_t> suspects_;
  bool answered_ = false;   // the ranks have sent output since Resume
  int no_output_ends_ = 0;  // consecutive ends of ranks that had requests and sent no output
  metrics::Clock::time_point no_output_since_;  // time of the first of these ends
  std::vector<EngineStats> last_stats_;
  int64_t epoch_ = 1, deaths_ = 0, changes_ = 0;
  double pause_seconds_ = 0;
  std::optional<metrics::Clock::time_point> paused_since_, held_since_;
  std::optional<metrics::Clock::time_point> ended_;  // end of the last ranks; reset at first token
};

}  // namespace switchyard
