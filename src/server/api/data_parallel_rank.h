// Parses the attention group (data-parallel rank) that a request selects.
#pragma once

#include <cstdint>
#include <optional>

#include "server/api/json_body.h"

namespace switchyard {

// Reads `routed_dp_rank`, or `data_parallel_rank`, which is SGLang's earlier name of the field.
// Returns nullopt if both are absent. Throws RequestError if they differ.
std::optional<int32_t> ParseDataParallelRank(const Fields& f);

}  // namespace switchyard
