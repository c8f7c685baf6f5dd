#include "server/front/server_state.h"

namespace switchyard {

const char* Name(ServerState state) {
  switch (state) {
    case ServerState::kStarting:
      return "starting";
    case ServerState::kReady:
      return "ready";
    case ServerState::kRestarting:
      return "restarting";
    case ServerState::kDraining:
      return "draining";
    case ServerState::kLost:
      break;
  }
  return "lost";
}

ServerState StateOf(const Service& service, const RankHistory& history) {
  if (service.front.ranks_lost()) return ServerState::kLost;
  if (!service.ready) return ServerState::kStarting;
  if (service.front.draining()) return ServerState::kDraining;
  return history.paused_for > 0 ? ServerState::kRestarting : ServerState::kReady;
}

bool RanksRespond(const Service& service, ServerState state) {
  return state != ServerState::kLost && state != ServerState::kStarting &&
         service.find_silent_rank().empty();
}

int ServingRanks(const Service& service, const RankHistory& history) {
  const bool serve = history.paused_for == 0 && RanksRespond(service, StateOf(service, history));
  return serve ? service.sizes().mesh.world() - history.absent : 0;
}

Json SparesJson(const SpareRanks& spares) {
  return {{"wanted", spares.wanted},
          {"ready", spares.ready},
          {"loading", spares.loading},
          {"used", spares.used},
          {"failed", spares.failed}};
}

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
