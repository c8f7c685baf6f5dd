// SGLang's controls of a running server: pauses, delays, limits, logs and sessions.
#pragma once

#include <string>

#include "engine/request.h"
#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// POST /pause_generation, /continue_generation, /slow_down, /set_internal_state,
// /configure_logging, /open_session, /close_session and /freeze_gc, and GET /get_load.
void RegisterControls(http::Server& server, Service& service);

// Parses the body of /pause_generation. Throws RequestError.
PauseAction ParsePause(const Json& body);
// Parses the body of /slow_down: the seconds before each step; 0: none. Throws RequestError.
double ParseSlowDown(const Json& body);
// Applies the body of /set_internal_state for a layout of these sizes. Throws RequestError that
// names a field of server_args that cannot be changed.
void ApplyServerArgs(const Json& body, const LayoutSizes& sizes, EngineControls* controls);

}  // namespace switchyard::native
