#include "moe/dispatchers/rounds.h"

#include <algorithm>

#include "core/error.h"
#include "quant/formats.h"

namespace switchyard {

int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape) {
  const int64_t capacity = std::min(shape.max_tokens, options.long_seq_per_round_tokens);
  const int64_t rounds = CeilDiv(shape.max_tokens, capacity);
  if (options.long_seq_rounds > 0 && rounds > options.long_seq_rounds)
    throw Invalid(
        "--deepep-normal-long-seq-round {}: a pass has up to {} tokens per rank, which take with "
        "--deepep-normal-long-seq-per-round-tokens {} a total of {} rounds; raise one of the two, "
        "or shorten passes",
        options.long_seq_rounds, shape.max_tokens, options.long_seq_per_round_tokens, rounds);
  return capacity;
}

}  // namespace switchyard
