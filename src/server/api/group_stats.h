// Statistics of an attention group in JSON responses.
#pragma once

#include "engine/request.h"
#include "server/api/json_body.h"

namespace switchyard {

// Requests, KV pages and counters of every kind of engine.
Json GroupStatsJson(const EngineStats& stats);

}  // namespace switchyard
