// JSON schemas of conversations: messages, tools, and responses of the APIs of OpenAI and
// Anthropic.
#pragma once

#include <span>

#include "server/openapi/schemas.h"

namespace switchyard::openapi {

std::span<const NamedSchema> ChatSchemas();

}  // namespace switchyard::openapi
