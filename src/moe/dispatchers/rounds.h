// How much of a long batch goes at a time.
#pragma once

#include <cstdint>

#include "moe/backends.h"

namespace switchyard {

// Most tokens of one rank in one exchange of any size (deepep's normal mode, flashinfer, fused):
// what
// --deepep-normal-long-seq-per-round-tokens says, or all of them. Error kInvalid where a pass would
// need more rounds than --deepep-normal-long-seq-round.
int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape);

}  // namespace switchyard
