// The requests of one attention group in a simulation: admission, chunked prefill and decode.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
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
  int64_t running = 1;       // requests
  int64_t most_running = 1;  // while other groups are absent
  int64_t pages = 1;         // pages of the cache
  int32_t page_size = 1;     // tokens
  int64_t chunk = 1;         // prompt rows of a step
  bool whole_prompts = false;
  int64_t logit_rows = 1;       // rows of a step with logits
  bool reuses_prefixes = true;  // false: all tokens are zero, which is faster
  // With pipeline stages: Scheduler::Options.
  int passes = 1;
  int64_t micro_batch = 0;
  double chunk_keys = 0;

  int64_t tokens() const { return pages * page_size; }
};

// An open request that moves to new ranks, or to another group.
struct OpenRequest {
  size_t index = 0;    // in the arrivals
  int64_t output = 0;  // tokens so far
  double first = 0;    // time of the first one
  int64_t redo = 0;    // rows that were computed before
  int group = 0;       // attention group
};

// The engine's own scheduler and prefix cache, with made-up tokens. Prompts of different requests
// are equal only where a trace says so (Arrival::blocks). Decode steps without changes are advanced
// together. `arrivals` must outlive the queue.
class RequestQueue {
 public:
  RequestQueue(std::span<const Arrival> arrivals, const QueueLimits& limits, Latencies* latencies);

  void Arrive(size_t request) { Add({.index = request}); }
  // Continues a request after its output so far.
  void Add(const OpenRequest& request);
  // Removes all requests, in order of arrival. Unless `keeps_cache`, the cache is then empty;
  // otherwise it has their computed pages.
  std::vector<OpenRequest> TakeAll(bool keeps_cache);
  // Limits the running requests to QueueLimits::running, or to most_running.
  void Limit(int64_t running) { scheduler_.Limit(running, 0); }

  // Admits requests and selects the rows of the next step. `mixed_rows`: the maximum prompt rows of
  // a step in which any group decodes; `others_decode`: whether another group does.
  GroupRows Plan(int64_t mixed_rows, bool others_decode);
  // The planned step has ended at `now`, and with `steps` > 1 more steps like it.
  void Advance(int64_t steps, double now);
  // For how many steps without prompts no request ends, or runs out of pages; at least 1.
  int64_t EqualSteps() const;

  // With pipeline stages, instead of Advance. Begin: the planned pass starts in the first stage.
  // The next pass may be planned then, but without the sequences whose tokens are in flight. End:
  // the first stage has the results of the oldest pass, at `now`. A group without rows in a pass
  // has both calls too.
  void Begin();
  void End(double now);

  int64_t waiting() const { return scheduler_.waiting(); }
  int64_t running() const { return scheduler_.running(); }
  // Prompt tokens that were in the prefix cache.
  int64_t cached_tokens() const { return scheduler_.cached_prompt_tokens(); }
  // Rows that were computed again for requests of Add.
  int64_t redone_rows() const { return redone_rows_; }

 private:
  struct Open : Sequence {
    Open(EngineRequest from, const OpenRequest& of) : Sequence(std::move(from)), state(of) {}
    OpenRequest state;  // `output` is that of Add
    std::list<Open>::iterator self;
  };

  // A sequence's part of a pass in flight.
  struct Part {
    Open* open = nullptr;
    int64_t end = 0;         // `computed` after the pass
    uint64_t admission = 0;  // Sequence::admissions
    bool decoding = false, samples = false;
  };

  std::vector<int32_t> TokensOf(size_t request, int64_t count);

  const std::span<const Arrival> arrivals_;
  const bool makes_tokens_;
  Latencies* const latencies_;
  KvCache cache_;
  Scheduler scheduler_;
  std::list<Open> open_;
  // Memory of requests that have ended, for the next ones. All entries are zero, or overwritten.
  std::vector<std::vector<int32_t>> spare_;
  std::span<const ScheduledRows> plan_;
  std::deque<std::vector<Part>> in_flight_;  // oldest first
  int64_t redone_rows_ = 0;
};

}  // namespace switchyard::plan
