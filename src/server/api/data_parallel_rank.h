// The field of a request that names its attention group.
#pragma once

#include <cstdint>
#include <optional>

#include "server/api/json_body.h"

namespace switchyard {

// `routed_dp_rank`, or `data_parallel_rank` as SGLang called it before; empty where there is
// neither. Error kInvalid where the two differ.
std::optional<int32_t> ParseDataParallelRank(const Fields& f);

}  // namespace switchyard
