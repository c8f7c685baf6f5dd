// Selects the rows of the next step.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/kv_cache/kv_cache.h"
#include "engine/scheduler/policy.h"
#include "engine/scheduler/prefill.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/waiting_queue.h"

namespace switchyard {

// A sequence's part of a step: the `rows` that follow `computed`.
struct ScheduledRows {
  Sequence* sequence = nullptr;
  int64_t rows = 0;
};

// Continuous batching with chunked prefill. A step has one row of every decoding request and, up to
// the chunk size, rows of prompts. So decoding requests do not wait for long prompts to end.
//
// The policy orders the queue before requests are admitted. The default is first come, first
// served. The running set is in order of admission. A request is admitted with pages for all its
// tokens, so only decoding can run out of pages. Then one running request is retracted to the head
// of the queue: of those with the lowest priority, the one admitted last. Among the requests of the
// highest priority, the one admitted first is never retracted. So one request always advances to
// its end. Borrows sequences and cache. Used by the rank's thread only.
class Scheduler {
 public:
  struct Options {
    int64_t max_running_requests = 256;
    int64_t chunk_rows = 2048;  // maximum prompt rows of a step
    bool whole_prompts = false;
    int64_t max_logit_rows = 1;  // maximum rows of a step whose logits are computed
    SchedulePolicy policy = SchedulePolicy::kFcfs;
    double conservativeness = 1.0;  // --schedule-conservativeness
    // Requests of higher priority are admitted first. If such a request has to wait for a place or
    // for pages, a running request is retracted if its priority is lower by more than the
    // threshold. At most one is retracted per step. Without `priorities`, the requests' priorities
    // are ignored.
    bool priorities = false;
    int64_t preemption_threshold = 10;
    int64_t max_draft_rows = 0;  // maximum draft rows of a step, over all sequences
    // Whether a step may have more draft rows than max_draft_rows if it has few decode or prompt
    // rows. The additional draft rows use the buffer rows of requests that do not run, and up to
    // half of the buffer rows of prompts, so they need no additional memory.
    bool drafts_take_room = false;
    double chunk_keys = 0;  // see PrefillBudget::keys
    // Passes in flight (pipeline stages). With several, a step has at most max_micro_batch decoding
    // sequences (0: an equal part of them). Sequences whose last token is not known yet are left
    // out. The sequences take turns.
    int passes = 1;
    int64_t max_micro_batch = 0;
  };
  Scheduler(Options options, KvCache& cache)
      : options_(options),
        max_running_(options.max_running_requests),
        max_micro_batch_(options.max_micro_batch),
        cache_(cache),
        estimate_(options.conservativeness) {}

  void Enqueue(Sequence* sequence) { waiting_.PushBack(sequence); }
  // Requests whose pages another engine reads or writes. Their pages are not available to others,
  // and they are never retracted. An exception: while no sequence can run, one that another engine
  // has asked for (Want) takes the pages of held ones that no engine has asked for. These are
  // parked: they compute their prompts again when an engine asks for them. Otherwise, two engines
  // with full caches could wait for each other, each with pages for other requests.
  //   EnqueueImport: the sequence waits for pages for its prompt and the first token. Imports get
  //     pages in the order of this call, and leave the same room for running requests as admission.
  //   Start: its pages have been written, and it has its first token. It runs as soon as fewer than
  //     max_running_requests do.
  //   Hold: it leaves the running set and keeps its pages until Remove, or until Park.
  // With recurrent states, each of them keeps a slot too. No request is admitted without slots
  // (KvCache::HasSlotsFor), as none is without pages.
  void EnqueueImport(Sequence* sequence) { imports_.push_back(sequence); }
  void Start(Sequence* sequence);
  void Hold(Sequence* sequence);
  void Want(Sequence* sequence);
  // The sequences that got pages in the last Plan.
  const std::vector<Sequence*>& reserved() const { return reserved_; }
  // Whether another engine may read or write the sequence's pages now.
  bool IsHeld(const Sequence* sequence) const;
  // Removes the sequence and releases its pages. Unless `discard`, its computed pages are first
  // inserted into the prefix cache.
  void Remove(Sequence* sequence, bool discard = false);

  // Retracts all running requests to the head of the queue, in order of admission. Requests whose
  // pages other engines read or write keep them.
  void RetractAll();
  // Limits how many requests may run from now on, and how many decode in one of several passes.
  // 0: the values of Options, which are also the maxima. Requests that run already continue.
  void Limit(int64_t running, int64_t micro_batch);
  // Whether a sequence has pages.
  bool holds_pages() const { return !running_.empty() || !held_.empty() || !ready_.empty(); }

  // Sets the maximum prompt rows of steps with decoding requests; at most chunk_rows.
  void LimitPrefill(int64_t rows) { prefill_limit_ = rows; }
  // Sets whether requests of another group decode. If so, the limit applies to this group too.
  void SetOthersDecode(bool decode) { others_decode_ = decode; }

  // Allocates pages for up to `count` drafts of a decoding sequence, and for the rows of a draft
  // model. Returns the number of drafts that have pages. Drafts never use the last pages: one for
  // each running request is left.
  int64_t GrowForDrafts(int64_t count, Sequence& sequence);

  // Plans a step, decoding sequences first. Every planned sequence has pages for all its tokens.
  // Empty only if no request is open, or all wait for passes in flight.
  const std::vector<ScheduledRows>& Plan();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const {
    return static_cast<int64_t>(waiting_.size() + imports_.size() + parked_.size());
  }
  int64_t waiting_tokens() const;
  // Whether the next Plan may have rows without a further message: false if all open requests wait
  // for pages that other engines read or write.
  bool runnable() const {
    return !running_.empty() || !ready_.empty() || (!waiting_.Empty() && !blocked_);
  }
  int64_t retractions() const { return retractions_; }
  int64_t cached_prompt_tokens() const { return cached_prompt_tokens_; }

 private:
  bool GrowDecoding();    // false: a request was retracted
  size_t Victim() const;  // index in running_ of the request to retract; running_ is not empty
  void Retract(size_t index);
  void Preempt();
  // Maximum draft rows of a step with this number of decoding sequences.
  int64_t DraftRoom(int64_t decoding) const;
  // Discards drafts of sequences that do not decode, and drafts beyond the limits of a step.
  void TrimDrafts();
  // Sets decoding_ to the running sequences that decode in this step.
  void SelectDecoding();
  PrefillBudget PlanRunning();
  void Admit(PrefillBudget budget);
  bool TryAdmit(Sequence& sequence, PrefillBudget& budget);
  // Called when no sequence can run. Admits the first waiting sequence that another engine has
  // asked for, or that runs on this engine only.
  void AdmitWanted(PrefillBudget budget);
  void Park(Sequence* sequence);  // a held one, which has no rows left to compute
  void StartReady();
  void ReserveImports();
  bool TryReserve(Sequence& sequence);
  // Pages that admission leaves free for the sequences that run or will run.
  int64_t Reserved() const;
  int64_t ReservedPages(const Sequence& sequence) const;

  const Options options_;
  // Limits of the next steps; at most those of options_, which give the sizes of buffers.
  int64_t max_running_, max_micro_batch_;
  KvCache& cache_;
  WaitingQueue waiting_;            // in order of admission
  std::vector<Sequence*> running_;  // in order of admission
  // Requests that another engine takes part in. imports_: they wait for pages. held_: their pages
  // are read or written. ready_: they have pages and the first token.
  // parked_: held before, and without pages.
  std::vector<Sequence*> imports_, held_, ready_, parked_;
  std::vector<Sequence*> reserved_;  // sequences that got pages in the last Plan
  bool blocked_ = false;             // the last plan admitted nothing, and held_ is not empty
  NewTokenEstimate estimate_;
  // Reused between steps to keep their allocations.
  std::vector<ScheduledRows> plan_;
  std::vector<Sequence*> decoding_;
  int64_t prefill_limit_ = std::numeric_limits<int64_t>::max();
  bool others_decode_ = false;
  uint64_t steps_ = 0;  // number of steps with waiting requests
  uint64_t plans_ = 0;  // number of steps
  int64_t retractions_ = 0, cached_prompt_tokens_ = 0;
};

}  // namespace switchyard
