// What a server does now, for its web page and its metrics.
#pragma once

#include <cstdint>
#include <string>

#include "engine/request.h"
#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard {

enum class ServerState : uint8_t {
  kStarting,    // the ranks load, or the warm-up request runs
  kReady,       // the ranks serve
  kRestarting,  // between two epochs of the ranks: requests wait
  kDraining,    // no new requests; the open ones run
  kLost,        // the ranks have ended, and the server ends too
};
inline constexpr ServerState kServerStates[] = {ServerState::kStarting, ServerState::kReady,
                                                ServerState::kRestarting, ServerState::kDraining,
                                                ServerState::kLost};
const char* Name(ServerState state);  // "starting", "ready", "restarting", "draining", "lost"

ServerState StateOf(const Service& service, const RankHistory& history);

// Whether the ranks respond to queries. False while they load, after they are lost, and after one
// of them has no recent heartbeat. While they restart, the front responds for them.
bool RanksRespond(const Service& service, ServerState state);

// Number of ranks that serve now: those of the layout without absent ranks, or 0 in a pause.
int ServingRanks(const Service& service, const RankHistory& history);

// Spare processes in JSON responses.
Json SparesJson(const SpareRanks& spares);

// Statistics of an attention group in JSON responses.

// Requests, KV pages and counters of every kind of engine.
Json GroupStatsJson(const EngineStats& stats);

}  // namespace switchyard
