#include "engine/scheduler/scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace switchyard {

void Scheduler::Remove(Sequence* sequence, bool discard) {
  cache_.Release(discard ? std::span<const int32_t>() : sequence->settled_tokens(),
                 sequence->cache);
  if (waiting_.Remove(sequence)) return;
  for (std::vector<Sequence*>* list : {&running_, &imports_, &held_, &ready_, &parked_})
    std::erase(*list, sequence);
}

const std::vector<ScheduledRows>& Scheduler::Plan() {
  plan_.clear();
  ++plans_;
  reserved_.clear();
  StartReady();
  if (options_.priorities) Preempt();
  const bool all_stay = GrowDecoding();
  TrimDrafts();
  const PrefillBudget rest = PlanRunning();
  // Admits nothing after a retraction for lack of pages: a new request would be retracted next.
  if (all_stay) {
    // A sequence decodes once in `passes` steps.
    if (plans_ % static_cast<uint64_t>(options_.passes) == 0) estimate_.DecayAfterStep();
    Admit(rest);
    if (plan_.empty() && running_.empty() && !held_.empty()) AdmitWanted(rest);
    ReserveImports();
  }
  blocked_ = all_stay && plan_.empty() && !held_.empty();
  return plan_;
}

void Scheduler::StartReady() {
  while (!ready_.empty() && running() < max_running_) {
    running_.push_back(ready_.front());
    ready_.erase(ready_.begin());
  }
}

void Scheduler::ReserveImports() {
  // Running and imported requests together are at most twice as many as may run.
  while (!imports_.empty() &&
         std::ssize(held_) + std::ssize(ready_) < options_.max_running_requests &&
         cache_.HasSlotsFor(options_.max_running_requests,
                            std::ssize(held_) + std::ssize(ready_) + 1)) {
    Sequence* const sequence = imports_.front();
    if (!TryReserve(*sequence)) return;
    imports_.erase(imports_.begin());
    held_.push_back(sequence);
    reserved_.push_back(sequence);
  }
}

bool Scheduler::TryReserve(Sequence& sequence) {
  const int64_t cached = cache_.Borrow(sequence.prompt(), sequence.cache,
                                       sequence.request.cache_salt, sequence.prompt_length);
  const bool alone = running_.empty() && held_.empty() && ready_.empty();
  const int64_t kept_free = alone ? 0 : Reserved() + ReservedPages(sequence);
  const int64_t pages = cache_.PagesFor(sequence.length() + 1);
  if (pages - sequence.cache.borrowed + kept_free > cache_.available() ||
      !cache_.Grow(sequence.length() + 1, sequence.cache)) {
    cache_.Release({}, sequence.cache);
    return false;
  }
  cache_.PrepareImported(cached, sequence.prompt_length, sequence.cache);
  sequence.computed = sequence.settled = cached;
  return true;
}

void Scheduler::Start(Sequence* sequence) {
  CHECK(std::erase(held_, sequence) == 1);
  ready_.push_back(sequence);
}

void Scheduler::Hold(Sequence* sequence) {
  CHECK(std::erase(running_, sequence) == 1);
  held_.push_back(sequence);
}

void Scheduler::Want(Sequence* sequence) {
  sequence->wanted = true;
  if (std::erase(parked_, sequence) == 1) waiting_.PushFront(sequence);
}

void Scheduler::Park(Sequence* sequence) {
  CHECK(std::erase(held_, sequence) == 1);
  sequence->Truncate(sequence->prompt_length);
  sequence->first_sent = true;
  cache_.Release(sequence->settled_tokens(), sequence->cache);
  sequence->computed = sequence->settled = sequence->draft_computed = 0;
  parked_.push_back(sequence);
  ++retractions_;
}

// The last one that was held is parked first: decode workers reserve pages in the order of arrival,
// so they will probably ask for it last.
void Scheduler::AdmitWanted(PrefillBudget budget) {
  if (running() >= max_running_ || budget.rows <= 0) return;
  const auto given_away = [](const Sequence* s) {
    return s->request.kv == KvRole::kExport && !s->wanted;
  };
  const std::vector<Sequence*> waiting = waiting_.InOrder();
  const auto first = std::ranges::find_if_not(waiting, given_away);
  if (first == waiting.end()) return;
  Sequence* const sequence = *first;
  while (!TryAdmit(*sequence, budget)) {
    const auto victim = std::find_if(held_.rbegin(), held_.rend(), given_away);
    if (victim == held_.rend()) return;
    Park(*victim);
  }
  waiting_.Remove(sequence);
  running_.push_back(sequence);
}

bool Scheduler::IsHeld(const Sequence* sequence) const {
  return std::ranges::find(held_, sequence) != held_.end();
}

bool Scheduler::GrowDecoding() {
  bool all_stay = true;
  for (size_t i = 0; i < running_.size(); ++i) {
    // An export needs no page for its first token.
    while (i < running_.size() && !running_[i]->complete &&
           running_[i]->request.kv != KvRole::kExport &&
           !cache_.Grow(running_[i]->length(), running_[i]->cache)) {
      // A single request always fits: admission bounds its length by the cache's capacity. But
      // pages of requests of other engines may fill the cache.
      CHECK(running() > 1 || !held_.empty() || !ready_.empty());
      const size_t victim = Victim();
      Retract(victim);
      if (victim < i) --i;
      all_stay = false;
    }
  }
  return all_stay;
}

size_t Scheduler::Victim() const {
  size_t victim = running_.size() - 1;
  if (!options_.priorities) return victim;
  for (size_t i = running_.size(); i-- > 0;)
    if (running_[i]->request.priority < running_[victim]->request.priority) victim = i;
  return victim;
}

// Runs before rows are planned. Retracts at most one request per step.
void Scheduler::Preempt() {
  OrderByPriority(&waiting_);
  if (waiting_.Empty() || running_.empty()) return;
  Sequence* const first = waiting_.Front();
  if (first->unknown > 0) return;  // it cannot be admitted in this step
  const size_t victim = Victim();
  const int64_t lead = int64_t{first->request.priority} - running_[victim]->request.priority;
  const bool fits =
      running() < max_running_ && cache_.PagesFor(first->length()) <= cache_.available();
  if (lead <= options_.preemption_threshold || fits) return;
  Retract(victim);
  OrderByPriority(&waiting_);
}

void Scheduler::Retract(size_t index) {
  Sequence* sequence = running_[index];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  cache_.Release(sequence->settled_tokens(), sequence->cache);
  sequence->computed = sequence->settled = sequence->draft_computed = 0;
  sequence->KeepDrafts(0);
  sequence->saved_hidden = {};
  waiting_.PushFront(sequence);
  ++retractions_;
  estimate_.ResetAfterRetraction();
}

void Scheduler::RetractAll() {
  while (!running_.empty()) Retract(running_.size() - 1);
}

void Scheduler::Limit(int64_t running, int64_t micro_batch) {
  const int64_t most = options_.max_running_requests;
  max_running_ = running > 0 ? std::min(running, most) : most;
  max_micro_batch_ = micro_batch > 0 ? micro_batch : options_.max_micro_batch;
}

int64_t Scheduler::waiting_tokens() const {
  int64_t tokens = 0;
  for (const Sequence* sequence : waiting_.InOrder()) tokens += sequence->length();
  for (const std::vector<Sequence*>* list : {&imports_, &parked_})
    for (const Sequence* sequence : *list) tokens += sequence->length();
  return tokens;
}

int64_t Scheduler::GrowForDrafts(int64_t count, Sequence& sequence) {
  for (; count > 0; --count) {
    const int64_t more = cache_.PagesFor(sequence.length() + count) -
                         static_cast<int64_t>(sequence.cache.pages.size());
    if (more > 0 && cache_.available() - more < running()) continue;
    CHECK(cache_.Grow(sequence.length() + count, sequence.cache));
    return count;
  }
  return 0;
}

int64_t Scheduler::DraftRoom(int64_t decoding) const {
  if (!options_.drafts_take_room) return options_.max_draft_rows;
  // A whole prompt may need all prompt rows, so drafts take none of them.
  const int64_t prompt_rows = options_.whole_prompts ? 0 : options_.chunk_rows / 2;
  return options_.max_draft_rows + options_.max_running_requests - decoding + prompt_rows;
}

void Scheduler::TrimDrafts() {
  const int64_t decoding = std::ranges::count_if(running_, &Sequence::decoding);
  int64_t left =
      std::min(DraftRoom(decoding), std::max<int64_t>(0, options_.max_logit_rows - decoding));
  for (Sequence* sequence : running_) {
    const auto drafts = static_cast<int64_t>(sequence->drafts.size());
    const int64_t kept = sequence->decoding() && !sequence->complete ? std::min(drafts, left) : 0;
    sequence->KeepDrafts(kept);
    left -= kept;
  }
}

void Scheduler::SelectDecoding() {
  const bool one = options_.passes == 1;  // else rows wait until their token is known
  decoding_.clear();
  for (Sequence* sequence : running_)
    if (sequence->decoding() && !sequence->complete && (one || sequence->unknown == 0))
      decoding_.push_back(sequence);
  if (one) return;
  const int64_t all = std::ranges::count_if(running_, &Sequence::decoding);
  const int64_t most =
      max_micro_batch_ > 0 ? max_micro_batch_ : (all + options_.passes - 1) / options_.passes;
  std::ranges::stable_sort(decoding_, {}, &Sequence::planned);
  if (std::ssize(decoding_) > most) decoding_.resize(static_cast<size_t>(most));
  for (Sequence* sequence : decoding_) sequence->planned = plans_;
}

PrefillBudget Scheduler::PlanRunning() {
  SelectDecoding();
  const auto rows_of = [](const Sequence* s) { return 1 + static_cast<int64_t>(s->drafts.size()); };
  int64_t decoding = 0;  // decode rows of the plan
  for (const Sequence* sequence : decoding_) decoding += rows_of(sequence);
  const int64_t room =
      options_.chunk_rows + options_.max_running_requests + options_.max_draft_rows - decoding;
  const int64_t rows = std::min(options_.chunk_rows, room);
  PrefillBudget budget{
      .rows = decoding > 0 || others_decode_
                  ? std::min(rows, std::max<int64_t>(prefill_limit_, cache_.chunk()))
                  : rows,
      .logit_rows = std::max<int64_t>(1, options_.max_logit_rows - decoding),
      .whole_prompts = options_.whole_prompts,
      .keys = options_.chunk_keys,
      .cost = ChunkCost(0, options_.chunk_rows, options_.chunk_keys),
      .least_rows = std::max<int64_t>({1, cache_.chunk(), options_.chunk_rows / 8}),
      .cache = &cache_,
  };
  for (Sequence* sequence : decoding_) plan_.push_back({sequence, rows_of(sequence)});
  for (Sequence* sequence : running_) {
    if (sequence->decoding() || sequence->pending() == 0) continue;
    if (const int64_t rows = PromptChunk(*sequence, budget)) {
      Spend(*sequence, rows, budget);
      plan_.push_back({sequence, rows});
    }
  }
  return budget;
}

void Scheduler::Admit(PrefillBudget budget) {
  if (waiting_.Empty() || running() >= max_running_ || budget.rows <= 0) return;
  OrderWaiting(options_.policy, cache_, steps_++, &waiting_);
  if (options_.priorities) OrderByPriority(&waiting_);
  while (!waiting_.Empty() && running() < max_running_ && budget.rows > 0) {
    if (!TryAdmit(*waiting_.Front(), budget)) break;
    running_.push_back(waiting_.Front());
    waiting_.PopFront();
  }
}

bool Scheduler::TryAdmit(Sequence& sequence, PrefillBudget& budget) {
  if (sequence.unknown > 0) return false;  // retracted in this step: its last token is not known
  if (!cache_.HasSlotsFor(running() + 1, std::ssize(held_) + std::ssize(ready_))) return false;
  sequence.computed =
      cache_.Borrow(std::span<const int32_t>(sequence.tokens).first(sequence.max_reusable()),
                    sequence.cache, sequence.request.cache_salt, sequence.prompt_length);
  sequence.settled = sequence.draft_computed = sequence.computed;
  const int64_t rows = PromptChunk(sequence, budget);
  int64_t reserved = 0;  // a single request needs no reserve: it has no competitors
  if (!running_.empty()) {
    reserved = ReservedPages(sequence) + Reserved();
  }
  const int64_t needed = cache_.PagesFor(sequence.length()) - sequence.cache.borrowed;
  if (rows == 0 || needed + reserved > cache_.available()) {
    cache_.Release({}, sequence.cache);
    sequence.computed = sequence.settled = sequence.draft_computed = 0;
    return false;
  }
  CHECK(cache_.Grow(sequence.length(), sequence.cache));
  ++sequence.admissions;
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    // Pages that this request computed before a restart of the ranks do not count as cached.
    const int64_t cached =
        sequence.computed - cache_.ComputedBy(sequence.request.id, sequence.cache);
    sequence.cached_tokens = static_cast<int32_t>(cached);
    cached_prompt_tokens_ += cached;
  }
  Spend(sequence, rows, budget);
  // A retracted request resumes with a decode step if all of its tokens but the last are in the
  // cache.
  const auto place = sequence.decoding() ? std::ranges::find_if_not(plan_, &Sequence::decoding,
                                                                    &ScheduledRows::sequence)
                                         : plan_.end();
  plan_.insert(place, {&sequence, rows});
  return true;
}

int64_t Scheduler::Reserved() const {
  int64_t pages = 0;
  for (const std::vector<Sequence*>* list : {&running_, &held_, &ready_})
    for (const Sequence* sequence : *list) pages += ReservedPages(*sequence);
  return pages;
}

int64_t Scheduler::ReservedPages(const Sequence& sequence) const {
  if (sequence.request.kv == KvRole::kExport) return 0;  // it ends with its first token
  return cache_.PagesFor(estimate_.For(sequence));
}

}  // namespace switchyard
