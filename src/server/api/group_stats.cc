#include "server/api/group_stats.h"

namespace switchyard {

Json GroupStatsJson(const EngineStats& stats) {
  return {{"running_requests", stats.running},
          {"waiting_requests", stats.waiting},
          {"waiting_tokens", stats.waiting_tokens},
          {"total_pages", stats.total_pages},
          {"free_pages", stats.free_pages},
          {"cached_pages", stats.cached_pages},
          {"steps", stats.steps},
          {"prefill_tokens", stats.prefill_tokens},
          {"cached_prompt_tokens", stats.cached_prompt_tokens},
          {"decode_tokens", stats.decode_tokens},
          {"retractions", stats.retractions}};
}

}  // namespace switchyard
