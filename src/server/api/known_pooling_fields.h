// Fields of requests to embedding models and classifiers. Internal to known_fields.cc.
#pragma once

#include <span>

#include "server/api/known_fields.h"

namespace switchyard {

// Empty if `kind` is no request for pooled vectors.
std::span<const KnownField> KnownPoolingFields(RequestKind kind);

}  // namespace switchyard
