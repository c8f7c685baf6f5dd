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
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/dp_controller.h"
#include "engine/request.h"
#include "server/front/defined_grammars.h"
#include "server/front/generation.h"
#include "server/metrics/request_metrics.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The prompt leaves no room for output in the context.
class ContextLengthError : public Error {
 public:
  explicit ContextLengthError(const std::string& what) : Error(ErrorKind::kInvalid, what) {}
};

// Sends control messages to the ranks. Their replies arrive through Front::OnMessage.
class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual void Send(
      const std::vector<ControlMessage>& messages) = 0;  // in order; from any thread; never blocks
};

// Owns the table of open generations; borrows link and tokenizer. Keeps the prompt and the unsent
// output of each request until the request finishes. Submit, Abort and the queries may be called
// from any thread; OnMessage and OnRanksLost from one thread each.
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

  // Throws kInvalid unless the model serves such requests: pooled ones, or those that generate
  // text.
  void CheckTask(bool pooled) const;
  // Validates `spec`. Throws ParameterError for an invalid field (parameter "prompt" for the
  // prompt), or ContextLengthError. Reduces max_new_tokens to the room left in the context, and
  // min_new_tokens to max_new_tokens.
  void Check(GenerationSpec& spec) const;
  // Validates `spec` and sends the request to the ranks. Returns its id. Throws the errors of
  // Check, ParameterError if a generation of the same name is open, kBusy if the queue is full,
  // and kUnavailable while draining or after the loss of the ranks.
  uint64_t Submit(GenerationSpec spec, GenerationCallback callback);
  // Throws kInvalid if `count` exceeds the limit of open requests, and kBusy if `count` more
  // requests do not fit now.
  void CheckCapacity(size_t count) const;
  // Asynchronous: generations that are still open end with FinishReason::kAbort.
  void Abort(const std::vector<uint64_t>& ids);
  void AbortNamed(const std::string& name);  // every generation with this name or batch name
  // Maximum number of tokens of one request, prompt and output together.
  int64_t longest() const { return std::min(limits_.context_length, limits_.cache_tokens); }
  void AbortAll();

  void FlushCache(std::function<void(bool done)> callback);
  // Statistics, one entry per attention group; empty if the ranks are lost.
  void Stats(std::function<void(const std::vector<EngineStats>&)> callback);

  // Controls the expert recorder. kDump writes its file on rank 0's host. If the ranks are lost,
  // the result carries an error.
  void RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback);
  void GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback);
  // RebalanceExperts starts expert rebalancing now; GetEplb returns its status. The report carries
  // the reason if the request is refused or the ranks are lost.
  void RebalanceExperts(std::function<void(const EplbReport&)> callback);
  void GetEplb(std::function<void(const EplbReport&)> callback);
  // Starts or ends a profile on all ranks. If the ranks are lost, `result` carries an error.
  void StartProfile(profile::Options options, std::function<void(const ProfileReport&)> callback);
  void StopProfile(std::function<void(const ProfileReport&)> callback);

  metrics::RequestMetrics& request_metrics() { return metrics_; }

  void OnMessage(const EngineMessage& message);
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
  void ReleaseName(const std::string& name);
  bool IsNameTaken(const GenerationSpec& spec) const;
  void AbortWhere(const std::function<bool(const Open&)>& chosen);
  void Deliver(const RequestOutput& output, metrics::Clock::time_point now);
  void Measure(Open& open, const RequestOutput& output, int32_t tokens_before,
               metrics::Clock::time_point now);
  // Stores the callback under a new ticket. Throws kUnavailable if the ranks are lost.
  template <typename T>
  uint64_t Ask(std::map<uint64_t, std::function<void(const T&)>>& asked,
               std::function<void(const T&)> callback);
  // Removes and returns the callback of `ticket`; null for an unknown ticket.
  template <typename T>
  std::function<void(const T&)> TakeCallback(
      std::map<uint64_t, std::function<void(const T&)>>& asked, uint64_t ticket);

  RankLink& link_;
  const Tokenizer& tokenizer_;
  const Limits limits_;
  std::atomic<bool> draining_{false}, lost_{false};
  metrics::RequestMetrics metrics_;

  // Held from the insertion of a request into open_ until the request is sent. So an abort of an
  // open request is never sent before the request itself. Lock order: before mutex_.
  std::mutex order_;
  DefinedGrammars grammars_;  // guarded by order_

  mutable std::mutex mutex_;  // guards all members below; never held while a callback runs
  std::condition_variable idle_;
  DpController controller_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<Open>> open_;
  std::map<std::string, int> names_;  // number of open generations of each name
  std::map<uint64_t, std::function<void(const FlushResult&)>> flushes_;
  std::map<uint64_t, std::function<void(const StatsReport&)>> stats_;
  std::map<uint64_t, std::function<void(const RecordResult&)>> records_;
  std::map<uint64_t, std::function<void(const ExpertLoadReport&)>> loads_;
  std::map<uint64_t, std::function<void(const EplbReport&)>> eplb_;
  std::map<uint64_t, std::function<void(const ProfileReport&)>> profiles_;
  std::string lost_reason_;
};

}  // namespace switchyard
