// The time of steps, and the limits that follow from it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/group_exchange.h"
#include "engine/rank_engine.h"
#include "engine/scheduler/prefill_pace.h"

namespace switchyard {

// Measures steps on the leader, and sends all ranks the number of prompt rows that fit the target
// time, and the number of drafts that gives the most tokens.
class StepTimer {
 public:
  explicit StepTimer(const RankEngine& engine)
      : engine_(engine), pace_(engine.prefill_pace()), drafts_(engine.draft_pace()) {}

  // `mine`: the counts of the leader's group.
  void Start(std::span<const StepCounts> groups, const StepCounts& mine) {
    started_ = Clock::now();
    current_ = {.decoding_here = mine.decoding};
    for (const StepCounts& group : groups) {
      current_.decode_rows += group.decode_tokens;
      current_.decoding += group.decoding;
      // The group with the most rows sets the time of the step.
      current_.prompt_rows = std::max(current_.prompt_rows, group.tokens - group.decode_tokens);
    }
  }
  // `launched`: the current step has not ended yet, and the previous step has. A device runs steps
  // one after another. So the time of a launched step is the time between its end and the end of
  // the step before it.
  void Stop(bool launched) {
    const auto now = Clock::now();
    if (!launched && !launched_) Observe(current_, now - started_);
    ObserveDrafts(now - started_);
    if (launched && launched_) Observe(*launched_, now - ended_);
    ended_ = now;
    launched_ = launched ? std::optional(current_) : std::nullopt;
  }
  // The next step does not follow the last one directly.
  void Interrupt() { launched_.reset(); }
  // `messages`: those that have arrived before the step.
  void AddLimits(std::vector<ControlMessage>& messages) {
    if (pace_ && pace_->rows() != sent_) {
      sent_ = pace_->rows();
      messages.emplace_back(LimitPrefill{.rows = sent_});
    }
    if (!drafts_) return;
    // More sequences may decode in the next steps than in the last one: all running requests, and
    // those that have just arrived.
    const auto arrived = std::ranges::count_if(messages, [](const ControlMessage& message) {
      return std::holds_alternative<EngineRequest>(message);
    });
    const int32_t limit = drafts_->Limit(std::max(current_.decoding, expected_ + arrived));
    if (limit == engine_.draft_limit()) return;
    // Drafting resumes only if the draft model has missed few enough rows (DraftsPayBacklog).
    if (engine_.draft_limit() == 0 && !engine_.DraftsPayBacklog()) return;
    messages.emplace_back(LimitDrafts{.drafts = limit});
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Rows {
    int64_t decode_rows = 0, prompt_rows = 0;
    int64_t decoding = 0, decoding_here = 0;  // sequences of all groups; of the leader's group
  };
  void ObserveDrafts(std::chrono::duration<double> time) {
    if (!drafts_) return;
    const int32_t limit = engine_.draft_limit();
    expected_ = engine_.running();
    drafts_->ObserveDrafts(current_.decoding_here, last_limit_, engine_.accepted_drafts());
    if (current_.prompt_rows == 0)
      drafts_->Observe(current_.decoding, limit == last_limit_ ? limit : -1, time.count());
    last_limit_ = limit;
  }
  void Observe(const Rows& rows, std::chrono::duration<double> time) {
    if (pace_) pace_->Observe(rows.prompt_rows, rows.decode_rows, time.count());
  }

  const RankEngine& engine_;
  std::optional<PrefillPace> pace_;
  std::optional<DraftPace> drafts_;
  int32_t last_limit_ = -1;
  int64_t expected_ = 0;  // running requests of the leader's group
  Clock::time_point started_, ended_;
  Rows current_;
  std::optional<Rows> launched_;
  int64_t sent_ = 0;
};

}  // namespace switchyard
