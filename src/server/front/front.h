// The request book: every open generation, between the HTTP handlers and the ranks.
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
#include "server/front/generation.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {

// The prompt leaves no room in the context.
class ContextLengthError : public Error {
 public:
  explicit ContextLengthError(const std::string& what) : Error(ErrorKind::kInvalid, what) {}
};

// The way to the ranks. Answers come back through Front::OnMessage.
class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual void Send(
      const std::vector<ControlMessage>& messages) = 0;  // ordered; any thread; never blocks
};

// Owns the book; borrows link and tokenizer. Submit, Abort and the questions may come from any
// thread; OnMessage and OnRanksLost from one thread each. Prompt and tokens of a request are kept
// here until it is finished.
class Front {
 public:
  struct Limits {
    int64_t vocab_size = 0;
    int64_t context_length = 0;
    int64_t cache_tokens = 0;  // of one request's prompt and output together
    int32_t max_open = 0;      // running and queued; 0: no limit
    bool has_experts = true;   // the model has routed experts
    // How long a request may wait for its first token, and run from there on; 0: no limit.
    std::chrono::duration<double> queue_timeout{0}, running_timeout{0};
  };
  // `controller` chooses the attention group of each request.
  Front(RankLink& link, const Tokenizer& tokenizer, Limits limits, DpController controller = {});
  ~Front();

  // What the client sent wrong is a ParameterError, its parameter "prompt" for the prompt, or a
  // ContextLengthError. A max_new_tokens that the context does not hold is cut, and min_new_tokens
  // with it.
  void Check(GenerationSpec& spec) const;
  // Checks and passes on. Error as Check has it, a ParameterError where a generation of the same
  // name is open, kBusy where the queue is full, kUnavailable while draining or without ranks.
  uint64_t Submit(GenerationSpec spec, GenerationCallback callback);
  // Error kInvalid where `count` requests never fit, kBusy where they do not now.
  void CheckRoom(size_t count) const;
  // Generations end with FinishReason::kAbort, unless they have ended already.
  void Abort(const std::vector<uint64_t>& ids);
  void AbortNamed(const std::string& name);  // all of that name or batch name
  // The longest prompt and output of one request, in tokens.
  int64_t longest() const { return std::min(limits_.context_length, limits_.cache_tokens); }
  void AbortAll();

  void FlushCache(std::function<void(bool done)> callback);
  // Gets the groups' statistics; none where the ranks are lost.
  void Stats(std::function<void(const std::vector<EngineStats>&)> callback);

  // Recording of experts; kDump's file is on rank 0's host. The result has an error where the ranks
  // are lost.
  void RecordExperts(RecordAction action, std::function<void(const RecordResult&)> callback);
  void GetExpertLoad(std::function<void(const ExpertLoadReport&)> callback);
  // Re-balancing of experts: asks for it now, or how it is. The report says where it is refused or
  // the ranks are lost.
  void RebalanceExperts(std::function<void(const EplbReport&)> callback);
  void GetEplb(std::function<void(const EplbReport&)> callback);

  void OnMessage(const EngineMessage& message);
  // Every open generation ends with kError and `why`; new ones are refused.
  void OnRanksLost(const std::string& why);

  // Ends requests over their time with an Error kUnavailable; to be called now and then.
  void AbortOverdue();

  void StartDraining();  // from now on Submit throws kUnavailable
  bool draining() const { return draining_; }
  bool ranks_lost() const { return lost_; }
  size_t open() const;
  std::vector<int64_t> open_by_group() const;
  bool WaitUntilIdle(std::chrono::milliseconds timeout);

 private:
  struct Open;
  Error Full() const;
  void CheckPrompt(const std::vector<int32_t>& ids) const;
  void ReleaseName(const std::string& name);
  bool IsNameTaken(const GenerationSpec& spec) const;
  void AbortWhere(const std::function<bool(const Open&)>& chosen);
  void Deliver(const RequestOutput& output);
  // Keeps the callback under a new ticket; Error kUnavailable where the ranks are lost.
  template <typename T>
  uint64_t Ask(std::map<uint64_t, std::function<void(const T&)>>& asked,
               std::function<void(const T&)> callback);
  template <typename T>
  std::function<void(const T&)> TakeQuestion(
      std::map<uint64_t, std::function<void(const T&)>>& asked, uint64_t ticket);

  RankLink& link_;
  const Tokenizer& tokenizer_;
  const Limits limits_;
  std::atomic<bool> draining_{false}, lost_{false};

  // Held from a request's entry into the book until it is on its way, so that an abort of what the
  // book holds never overtakes it. Taken before mutex_.
  std::mutex order_;

  mutable std::mutex mutex_;  // guards what follows; never held while a callback runs
  std::condition_variable idle_;
  DpController controller_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::shared_ptr<Open>> open_;
  std::map<std::string, int> names_;  // of open generations that have one: how many
  std::map<uint64_t, std::function<void(const FlushResult&)>> flushes_;
  std::map<uint64_t, std::function<void(const StatsReport&)>> stats_;
  std::map<uint64_t, std::function<void(const RecordResult&)>> records_;
  std::map<uint64_t, std::function<void(const ExpertLoadReport&)>> loads_;
  std::map<uint64_t, std::function<void(const EplbReport&)>> eplb_;
  std::string lost_reason_;
};

}  // namespace switchyard
