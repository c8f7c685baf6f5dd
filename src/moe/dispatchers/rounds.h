// Splitting of long batches into rounds.
#pragma once

#include <cstdint>

#include "moe/backends.h"

namespace switchyard {

// Maximum tokens of one rank in one exchange of variable size that has a combine in each round
// (flashinfer, fused, deepep's normal mode on GPUs). It is
// --deepep-normal-long-seq-per-round-tokens, or the number of tokens of a pass if that is lower.
// Error kInvalid if a pass would need more rounds than --deepep-normal-long-seq-round, or if a
// round would need a larger buffer than HCCL_BUFFSIZE.
int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape);

// Maximum tokens of one rank in one dispatch and in one combine. A combine covers a whole pass or,
// with a combine in each round, one dispatch.
struct PassRounds {
  int64_t dispatch_tokens = 0, combine_tokens = 0;
};
// Limits of deepep's normal mode on CPUs. There is a combine in each round if combine_long_seq is
// set, or if HCCL_BUFFSIZE suffices for one round but not for a whole pass. Throws the errors of
// TokensPerRound. If HCCL_BUFFSIZE is too small for both, the error states the smaller of the two
// requirements.
PassRounds RoundsOfPass(const MoeOptions& options, const ExchangeShape& shape);

// Minimum HCCL_BUFFSIZE in MiB for exchanges of `tokens` tokens per rank, by SGLang's formula
// (docs/advanced_features/expert_parallelism.md, "DeepEP Ascend"). `in_rounds`: uses the formula
// for long sequences, and `tokens` are those of one round; otherwise those of a whole pass.
int64_t HcclBufferMib(int64_t tokens, bool in_rounds, const ExchangeShape& shape);

}  // namespace switchyard
