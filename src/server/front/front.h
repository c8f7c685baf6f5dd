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
#include "server/front/defined_grammars.h"
#include "server/front/generation.h"
#include "server/front/questions.h"
#include "server/metrics/rank_history.h"
#include "server/metrics/request_metrics.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The prompt leaves no space for output in the context.
class ContextLengthError : public Error {
 public:
  explicit ContextLengthError(const std::string& what) : Error(ErrorKind::kInvalid, what) {}
};

// How the ranks ended.
struct RanksEnd {
  std::string why;
  std::chrono::steady_clock::time_point time{};  // of the detection
  // Ranks that ended by a fault signal or an error, so a request of their batch may be the cause.
  // Empty if a rank ended by SIGKILL or because of a missing heartbeat.
  std::vector<int> failed;
  std::optional<std::vector<uint64_t>> batch;  // request ids of that batch; nullopt: unknown
  bool by_itself() const { return !failed.empty(); }
  bool Had(uint64_t id) const;  // whether this request may have been in the batch
};

// Sends control messages to the ranks. Their replies arrive through Front::OnMessage.
class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual void Send(
      const std::vector<ControlMessage>& messages) = 0;  // in order; from any thread; never blocks
};

// Whether a query waits or fails while the ranks cannot respond.
enum class WhenHeld : uint8_t { kWait, kFail };

// Owns the table of open generations; borrows link and tokenizer. Keeps the prompt and the output
// ids of each request until the request finishes. So new ranks can continue it (Pause, Resume). A
// token that is not in the table was not sent to a client, and the new ranks sample the same token
// again. Submit, Abort and the queries may be called from any thread; OnMessage, BeginPause, Pause,
// PauseForChange, Resume and OnRanksLost from one thread at a time.
class Front {
 public:
  struct Limits {
    int64_t vocab_size = 0;
    int64_t context_length = 0;
    int64_t cache_tokens = 0;          // KV capacity for one request, prompt and output together
    int32_t max_open = 0;              // running and queued requests; 0: no limit
    bool has_experts = true;           // the model has routed experts
    Pooling pooling = Pooling::kNone;  // other than kNone: all requests are pooled
    // queue_timeout limits the time until the first token, running_timeout the time after that
    // token. 0: no limit.
    std::chrono::duration<double> queue_timeout{0}, running_timeout{0};
  };
  // `controller` chooses the attention group of each request.
  Front(RankLink& link, const Tokenizer& tokenizer, Limits limits, DpController controller = {});
  ~Front();
  // Before the first request: the requests are parts of requests to two servers. `transfers`
  // outlives the front's use of it.
  void Use(KvTransfers* transfers) { transfers_ = transfers; }

  // Throws kInvalid unless the model serves such requests: pooled ones, or those that generate
  // text.
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
  // Generations that are still open end with FinishReason::kAbort: immediately if the ranks do not
  // have them, else when the ranks have ended them. The callbacks may run in this call.
  void Abort(const std::vector<uint64_t>& ids);
  void AbortNamed(const std::string& name);  // every generation with this name or batch name
  // Maximum number of tokens of one request, prompt and output together.
  int64_t longest() const { return std::min(limits_.context_length, limits_.cache_tokens); }
  void AbortAll();

  void FlushCache(std::function<void(bool done)> callback);
  // Statistics, one entry per attention group; empty if the ranks are lost. While requests are
  // held, the last known ones, immediately.
  void Stats(std::function<void(const std::vector<EngineStats>&)> callback);

  // Controls the expert recorder. kDump writes its file on rank 0's host. If the ranks are lost,
  // the result carries an error.
  void RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback);
  void GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback,
                     WhenHeld when_held = WhenHeld::kWait);
  // RebalanceExperts starts expert rebalancing now; GetEplb returns its status. The report carries
  // the reason if the request is refused or the ranks are lost.
  void RebalanceExperts(std::function<void(const EplbReport&)> callback);
  void GetEplb(std::function<void(const EplbReport&)> callback,
               WhenHeld when_held = WhenHeld::kWait);
  // Starts or ends a profile on all ranks. If the ranks are lost, the report carries an error.
  void StartProfile(profile::Options options, std::function<void(const ProfileReport&)> callback);
  void StopProfile(std::function<void(const ProfileReport&)> callback);

  metrics::RequestMetrics& request_metrics() { return metrics_; }

  // For transfers: StartImported and ReleaseKv, unless the request has ended or was aborted.
  void StartImported(uint64_t id, RequestOutput first);
  void ReleaseKv(uint64_t id, const std::string& error);

  void OnMessage(const EngineMessage& message);
  // A rank has ended, so nothing is sent until Resume. Keeps open requests and questions; accepts
  // new ones. Aborted requests end. `ended`: when the rank ended.
  void BeginPause(std::chrono::steady_clock::time_point ended);
  // All ranks have ended their epoch, and new ones will start. Begins the pause if it has not
  // begun. If a rank ended by itself, the requests of its batch are suspect: Resume lets them run
  // first, each of them alone for a few tokens. A suspect ends with an error if a rank that failed
  // with it before fails again while the suspect runs alone. Another rank may have had its fault
  // before, so its first failure proves nothing. A query that two ends of ranks have interrupted
  // ends with an error. Returns the number of ends in a row in which ranks had requests and
  // answered none of them; 0: they answered one, or had none. After several such ends, SIGKILL and
  // stalls make requests suspect too: the kernel may kill ranks because of the memory that one
  // needs.
  int Pause(const RanksEnd& end);
  // As Pause, for a planned change. The ranks of the last epoch send no more messages. `since`:
  // when they were ended. `groups`: the number of attention groups of the next ranks. If it
  // changes, the open requests are balanced over them. A request pinned to a group that no longer
  // exists moves to its number modulo `groups`.
  void PauseForChange(std::chrono::steady_clock::time_point since, int groups);
  // Whether the present ranks have sent an output, or have nothing to do.
  bool Progressed() const;
  // Call when the link leads to new ranks. Sends the open queries again, then the open requests
  // with their output, in the order of their ids.
  void Resume();
  RankHistory history() const;
  // Ends every open generation with FinishReason::kError and `why`. Later calls of Submit fail.
  void OnRanksLost(const std::string& why);

  // Ends requests that exceed their timeout with ErrorKind::kUnavailable. Call periodically.
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
  void AbortWhere(const std::function<bool(const Open&)>& chosen);
  // A request that ends here, because the ranks do not have it.
  struct Ending {
    std::shared_ptr<Open> open;
    RequestOutput last;
    std::string overdue;  // Open::overdue
    bool suspect = false;
  };
  // Lets the request end with `last`, unless it ends already. Requires mutex_.
  void Finish(Open& open, RequestOutput last, std::vector<Ending>* endings);
  void EndTransfer(Open& open, std::vector<Ending>* endings);
  // Aborts one request. Requires order_ and mutex_.
  void Abort(Open& open, std::vector<Ending>* endings, std::vector<ControlMessage>* aborts);
  void End(const std::vector<Ending>& endings);
  // Whether requests or queries wait. Requires mutex_.
  bool held() const { return paused_ || !suspects_.empty(); }
  std::vector<EngineStats> HeldStats() const;  // requires mutex_
  int EndedWithoutAnswer(const RanksEnd& end);
  void Regroup(int groups);  // requires mutex_
  bool IsToBlame(const Open& suspect, const RanksEnd& end, int fruitless) const;
  void Deliver(const RequestOutput& output, metrics::Clock::time_point now);
  void Take(Open& open, const RequestOutput& output, const std::string& overdue,
            metrics::Clock::time_point now);
  // Appends the messages that send the request to the ranks. Requires order_ and mutex_.
  void Append(Open& open, std::vector<ControlMessage>* messages);
  // Sends the requests that the ranks do not have, or one suspect alone. Requires order_.
  void SendUnsent();
  void EndTrial(uint64_t id);
  void Measure(Open& open, const RequestOutput& output, int32_t tokens_before,
               metrics::Clock::time_point now);
  // Sends a query. `if_lost` makes the response if the ranks are lost. Throws kUnavailable if they
  // are lost already. `if_held` makes the response while requests are held; null: the query waits.
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

  // Held from the insertion of a request into open_ until the request is sent. So an abort of an
  // open request is never sent before the request itself. Also held while the requests to send
  // after a pause are selected and sent. Lock order: before mutex_.
  std::mutex order_;
  DefinedGrammars grammars_;  // guarded by order_

  mutable std::mutex mutex_;  // guards all members below; never held while a callback runs
  std::condition_variable idle_;
  DpController controller_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<Open>> open_;
  std::map<std::string, int> names_;  // number of open generations of each name
  Questions questions_;
  std::string lost_reason_;
  bool paused_ = false;  // between two epochs of the ranks: nothing is sent
  // Open requests that were in the batch of a rank which ended by itself. While there are any, the
  // ranks have only the first one.
  std::set<uint64_t> suspects_;
  bool answered_ = false;   // the ranks have sent output since Resume
  int fruitless_ends_ = 0;  // consecutive ends without output, of ranks that had requests
  metrics::Clock::time_point fruitless_since_;  // time of the first of these ends
  std::vector<EngineStats> last_stats_;
  int64_t epoch_ = 1, deaths_ = 0, changes_ = 0;
  double pause_seconds_ = 0;
  std::optional<metrics::Clock::time_point> paused_since_, held_since_;
  std::optional<metrics::Clock::time_point> ended_;  // end of the last ranks; reset at first token
};

}  // namespace switchyard
