// Fields of requests to the APIs for agents: Messages and Responses. Internal to known_fields.cc.
#pragma once

#include <span>

#include "server/api/known_fields.h"

namespace switchyard {

// `kind`: kMessages or kResponses.
std::span<const KnownField> KnownAgentFields(RequestKind kind);

}  // namespace switchyard
