// Splitting of long batches into rounds.
#pragma once

#include <cstdint>

#include "moe/backends.h"

namespace switchyard {

// Maximum tokens of one rank in one variable-size exchange (deepep's normal mode, flashinfer,
// fused): --deepep-normal-long-seq-per-round-tokens, or all tokens if there are fewer. Error
// kInvalid if a pass would need more rounds than --deepep-normal-long-seq-round, or if a round
// would need a larger buffer than HCCL_BUFFSIZE.
int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape);

// Minimum HCCL_BUFFSIZE in MiB for exchanges of `tokens` tokens per rank, by SGLang's formula
// (docs/advanced_features/expert_parallelism.md, "DeepEP Ascend"). `in_rounds`: the formula for
// long sequences.
int64_t HcclBufferMib(int64_t tokens, bool in_rounds, const ExchangeShape& shape);

}  // namespace switchyard
