// Fields of requests that change or check the weights of the ranks. Internal to known_fields.cc.
#pragma once

#include <span>

#include "server/api/known_fields.h"

namespace switchyard {

// Empty if `kind` is no request about weights.
std::span<const KnownField> KnownWeightFields(RequestKind kind);

}  // namespace switchyard
