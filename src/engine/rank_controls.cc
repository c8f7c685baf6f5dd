// Controls of a rank's engine: pauses, and limits that clients set while it serves.
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/rank_engine_impl.h"

namespace switchyard {

void RankEngine::Impl::Set(const SetControls& set, std::vector<EngineMessage>* messages) {
  controls = set.controls;
  scheduler.Limit(controls.max_running_requests, controls.max_micro_batch);
  ControlsSet done{.ticket = set.ticket};
  // The tokens of passes in flight are sent before the answer. So no token follows the answer until
  // the engine continues, and no retracted request waits for a token.
  if (controls.paused) Collect();
  if (set.action == PauseAction::kRetract) {
    done.requests = scheduler.running();
    scheduler.RetractAll();
    AnswerRetractedPages();
  } else if (set.action == PauseAction::kAbort) {
    std::vector<uint64_t> ids;
    for (const auto& [id, sequence] : table) ids.push_back(id);
    for (const uint64_t id : ids) Abort(id);
    done.requests = std::ssize(ids);
  }
  if (!answers.empty()) messages->emplace_back(StepOutputs{std::exchange(answers, {})});
  if (set.ticket != 0) messages->emplace_back(done);
}

void RankEngine::Impl::Reset(std::vector<EngineMessage>* messages) {
  Collect();
  if (!answers.empty()) messages->emplace_back(StepOutputs{std::exchange(answers, {})});
  while (!table.empty()) Abort(table.begin()->first);
  answers.clear();  // the front sends these requests again
  cache.DropPrefixes();
  grammars = RankGrammars();
  Set({}, messages);
}

bool RankEngine::Impl::CanFlush() const {
  if (table.empty()) return true;
  // The requests that wait while the engine is paused get pages when they are admitted.
  return controls.paused && !scheduler.holds_pages() && !launched && staged.empty();
}

EngineStats RankEngine::Impl::Stats() const {
  EngineStats stats = counters;
  stats.running = static_cast<int32_t>(scheduler.running());
  stats.waiting = static_cast<int32_t>(scheduler.waiting());
  stats.waiting_tokens = scheduler.waiting_tokens();
  stats.total_pages = cache.total();
  stats.free_pages = cache.free();
  stats.cached_pages = cache.cached();
  stats.page_size = options.page_size;
  stats.cached_prompt_tokens = scheduler.cached_prompt_tokens();
  stats.retractions = scheduler.retractions();
  return stats;
}

}  // namespace switchyard
