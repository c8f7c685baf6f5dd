// The requests of one attention group in a simulation: admission, chunked prefill and decode.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv_cache/kv_cache.h"
#include "engine/scheduler/scheduler.h"
#include "plan/simulate.h"
#include "plan/step_clock.h"

namespace switchyard::plan {

// Latencies in seconds. Floats, because a simulated day has millions of requests.
struct Latencies {
  std::vector<float> ttft, itl, whole;

  void AddFirst(const Arrival& request, double now) {
    ttft.push_back(static_cast<float>(now - request.seconds));
  }
  void AddLast(const Arrival& request, double first, double now) {
    whole.push_back(static_cast<float>(now - request.seconds));
    if (request.output > 1)
      itl.push_back(static_cast<float>((now - first) / static_cast<double>(request.output - 1)));
  }
};

// Limits of a group.
struct QueueLimits {
  int64_t running = 1;    // requests
  int64_t pages = 1;      // pages of the cache
  int32_t page_size = 1;  // tokens
  int64_t chunk = 1;      // prompt rows of a step
  bool whole_prompts = false;
  int64_t logit_rows = 1;  // rows of a step with logits
  bool reuses_prefixes = true;

  int64_t tokens() const { return pages * page_size; }
};

// Requests are indices in `arrivals`, which must outlive the queue.
class RequestQueue {
 public:
  virtual ~RequestQueue() = default;
  virtual void Arrive(size_t request) = 0;
  // Admits requests and selects the rows of the next step. `mixed_rows`: the maximum prompt rows of
  // a step in which any group decodes; `others_decode`: whether another group does.
  virtual GroupRows Plan(int64_t mixed_rows, bool others_decode) = 0;
  // The planned step has ended at `now`, and with `steps` > 1 more steps like it.
  virtual void Advance(int64_t steps, double now) = 0;
  // Steps without prompts until a decoding request ends; at least 1.
  virtual int64_t StepsUntilEnd() const = 0;
  virtual int64_t waiting() const = 0;
  virtual int64_t running() const = 0;
  // Prompt tokens that were in the prefix cache.
  virtual int64_t cached_tokens() const = 0;
};

// Counts tokens, without a list of pages: the time per step does not depend on the number of
// requests. A request reserves cache for its whole output when it is admitted.
class CountedQueue : public RequestQueue {
 public:
  CountedQueue(std::span<const Arrival> arrivals, const QueueLimits& limits, Latencies* latencies)
      : arrivals_(arrivals), limits_(limits), latencies_(latencies) {}
  void Arrive(size_t request) override { waiting_.push_back(request); }
  GroupRows Plan(int64_t mixed_rows, bool others_decode) override;
  void Advance(int64_t steps, double now) override;
  int64_t StepsUntilEnd() const override;
  int64_t waiting() const override { return std::ssize(waiting_); }
  int64_t running() const override {
    return static_cast<int64_t>(prompts_.size() + decoding_.size());
  }
  int64_t cached_tokens() const override { return 0; }

 private:
  struct Prompt {
    size_t request;
    int64_t done = 0, taken = 0;  // rows before this step, and in it
  };
  // All decoding requests advance by a token in each step.
  struct Decoding {
    int64_t end;  // value of ticks_ after its last token
    size_t request;
    double first;  // time of its first token
    bool operator>(const Decoding& o) const {
      return end != o.end ? end > o.end : request > o.request;
    }
  };
  void Admit();
  void End(size_t request, double first, double now);

  const std::span<const Arrival> arrivals_;
  const QueueLimits limits_;
  Latencies* const latencies_;
  std::deque<size_t> waiting_;
  std::deque<Prompt> prompts_;  // running requests with pending prompt rows, by admission
  std::priority_queue<Decoding, std::vector<Decoding>, std::greater<>> decoding_;
  int64_t ticks_ = 0;     // decode steps so far
  int64_t reserved_ = 0;  // cache tokens
  int64_t keys_ = 0;      // of all decoding requests
};

// The engine's own scheduler and prefix cache, with made-up tokens. Prompts of different requests
// are equal only where a trace says so (Arrival::blocks).
class ScheduledQueue : public RequestQueue {
 public:
  ScheduledQueue(std::span<const Arrival> arrivals, const QueueLimits& limits,
                 Latencies* latencies);
  void Arrive(size_t request) override;
  GroupRows Plan(int64_t mixed_rows, bool others_decode) override;
  void Advance(int64_t steps, double now) override;
  int64_t StepsUntilEnd() const override { return 1; }
  int64_t waiting() const override { return scheduler_.waiting(); }
  int64_t running() const override { return scheduler_.running(); }
  int64_t cached_tokens() const override { return scheduler_.cached_prompt_tokens(); }

 private:
  struct Open : Sequence {
    Open(EngineRequest from, size_t of) : Sequence(std::move(from)), request_index(of) {}
    size_t request_index;
    double first = 0;  // time of the first token
    std::list<Open>::iterator self;
  };

  const std::span<const Arrival> arrivals_;
  Latencies* const latencies_;
  KvCache cache_;
  Scheduler scheduler_;
  std::list<Open> open_;
  std::span<const ScheduledRows> plan_;
};

}  // namespace switchyard::plan
