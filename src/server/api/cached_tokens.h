// SGLang's details of cached prompt tokens.
#pragma once

#include <cstdint>

#include "server/api/json_body.h"

namespace switchyard {

// Counts of cached prompt tokens by the memory that holds them. null if no tokens are cached, as in
// SGLang. `device` is the memory of the device that runs the model, even if that device is a CPU.
// `host` is 0, because this server has no second cache tier.
inline Json CachedTokensDetails(int32_t cached) {
  if (cached == 0) return nullptr;
  return {{"device", cached}, {"host", 0}};
}

}  // namespace switchyard
