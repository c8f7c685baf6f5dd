// JSON schemas of the fields of control requests.
#pragma once

#include <span>

#include "server/openapi/field_schemas.h"

namespace switchyard::openapi {

// The schemas of the fields of a kind of request; empty for other kinds.
std::span<const FieldSchema> ControlFieldSchemas(RequestKind kind);

}  // namespace switchyard::openapi
