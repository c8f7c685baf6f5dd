// Splitting of long batches into rounds.
#pragma once

#include <cstdint>

#include "moe/backends.h"

namespace switchyard {

// Maximum tokens of one rank in one variable-size exchange (deepep's normal mode, flashinfer,
// fused): --deepep-normal-long-seq-per-round-tokens, or all tokens if there are fewer. Error
// kInvalid if a pass would need more rounds than --deepep-normal-long-seq-round.
int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape);

}  // namespace switchyard
