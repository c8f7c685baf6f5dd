// Splitting of long batches into rounds.
#pragma once

#include <cstdint>

#include "moe/backends.h"

namespace switchyard {

// Maximum tokens of one rank in one variable-size exchange with a combine in each round
// (flashinfer, fused, deepep's normal mode on GPUs): --deepep-normal-long-seq-per-round-tokens, or
// all tokens if there are fewer. Error kInvalid if a pass would need more rounds than
// --deepep-normal-long-seq-round, or if a round would need a larger buffer than HCCL_BUFFSIZE.
int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape);

// Maximum tokens of one rank in one dispatch and in one combine. A combine has the tokens of a
// whole pass or, if it uses dispatch's rounds, those of one dispatch.
struct PassRounds {
  int64_t dispatch_tokens = 0, combine_tokens = 0;
};
// Limits of deepep's normal mode on CPUs. Combine uses dispatch's rounds if combine_long_seq is
// set, or if HCCL_BUFFSIZE covers one round but not a whole pass. Errors as from TokensPerRound. If
// HCCL_BUFFSIZE is too small, the error states the smaller of the two requirements.
PassRounds RoundsOfPass(const MoeOptions& options, const ExchangeShape& shape);

// Minimum HCCL_BUFFSIZE in MiB for exchanges of `tokens` tokens per rank, by SGLang's formula
// (docs/advanced_features/expert_parallelism.md, "DeepEP Ascend"). `in_rounds`: the formula for
// long sequences, with the tokens of one round. Otherwise `tokens` are those of a whole pass.
int64_t HcclBufferMib(int64_t tokens, bool in_rounds, const ExchangeShape& shape);

}  // namespace switchyard
