// JSON schemas of responses.
#pragma once

#include <span>

namespace switchyard::openapi {

struct NamedSchema {
  const char* name;
  const char* schema;  // JSON text
};

// Members that a schema does not list may be present, so that later versions can add some.
std::span<const NamedSchema> ResponseSchemas();

}  // namespace switchyard::openapi
