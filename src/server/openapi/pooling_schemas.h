// JSON schemas of the requests and responses of embedding models and classifiers.
#pragma once

#include <span>
#include <vector>

#include "server/openapi/field_schemas.h"
#include "server/openapi/schemas.h"

namespace switchyard::openapi {

// The schemas of the fields of a kind of request; empty for other kinds.
std::span<const FieldSchema> PoolingFieldSchemas(RequestKind kind);
std::span<const NamedSchema> PoolingSchemas();

}  // namespace switchyard::openapi
