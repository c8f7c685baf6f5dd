// Fields of control requests. Internal to known_fields.cc.
#pragma once

#include <span>

#include "server/api/known_fields.h"

namespace switchyard {

// Empty if `kind` is no control request of this file.
std::span<const KnownField> KnownControlFields(RequestKind kind);

}  // namespace switchyard
