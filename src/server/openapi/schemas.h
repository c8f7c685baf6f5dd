// JSON schemas of requests and responses.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/api/known_fields.h"

namespace switchyard::openapi {

// JSON schemas of responses.

struct NamedSchema {
  const char* name;
  const char* schema;  // JSON text
};

// Members that a schema does not list may be present, so that later versions can add some.
std::span<const NamedSchema> ResponseSchemas();

// JSON schemas of the fields of request bodies.

struct FieldSchema {
  const char* name;
  const char* schema;  // JSON. Null is not listed: a null field counts as absent
};

// Returns the schema of an honoured field; nullptr if it has none. A field with the same form in
// several kinds of requests has one shared schema.
const char* SchemaOf(RequestKind kind, std::string_view name);

// All schemas that SchemaOf may return for `kind`, without the shared ones.
std::span<const FieldSchema> OwnSchemas(RequestKind kind);
std::span<const FieldSchema> SharedSchemas();

// A request body in components/schemas. Several bodies may have the fields of one RequestKind.
struct Body {
  const char* name;
  RequestKind kind;
  const char* rules;  // JSON members that the schema has in addition to properties, or ""
};
std::span<const Body> Bodies();

// The schema of a body: every known field of its kind. An honoured field has the schema of
// SchemaOf. A refused field has "x-refused" and the values that disable it.
Json BodySchema(const Body& body);

// JSON schemas of conversations: messages, tools, and responses of the APIs of OpenAI and
// Anthropic.

std::span<const NamedSchema> ChatSchemas();

// JSON schemas of the fields of control requests.

// The schemas of the fields of a kind of request; empty for other kinds.
std::span<const FieldSchema> ControlFieldSchemas(RequestKind kind);

// JSON schemas of the requests and responses of embedding models and classifiers.

// The schemas of the fields of a kind of request; empty for other kinds.
std::span<const FieldSchema> PoolingFieldSchemas(RequestKind kind);
std::span<const NamedSchema> PoolingSchemas();

}  // namespace switchyard::openapi
