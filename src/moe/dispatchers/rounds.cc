#include "moe/dispatchers/rounds.h"

#include <algorithm>

#include "core/error.h"
#include "quant/formats.h"

namespace switchyard {
namespace {

void CheckHcclBuffer(const MoeOptions& options, const ExchangeShape& shape, int64_t tokens,
                     bool in_rounds) {
  if (options.hccl_buffer_mib == 0) return;
  const int64_t need = HcclBufferMib(tokens, in_rounds, shape);
  if (need <= options.hccl_buffer_mib) return;
  throw Invalid(
      "HCCL_BUFFSIZE={0}: an exchange of {1} tokens per rank needs {2} MiB (2 * (102 MB + 4 MB + "
      "{1} * "
      "{3} * hidden {4} * top-k {5}) + 20 MB); raise it, or lower "
      "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS",
      options.hccl_buffer_mib, tokens, need, in_rounds ? 3 : 2, shape.hidden, shape.k);
}

// Returns the maximum tokens of one rank in one dispatch.
int64_t SplitPass(const MoeOptions& options, const ExchangeShape& shape) {
  const int64_t capacity = std::min(shape.max_tokens, options.long_seq_per_round_tokens);
  const int64_t rounds = CeilDiv(shape.max_tokens, capacity);
  if (options.long_seq_rounds > 0 && rounds > options.long_seq_rounds)
    throw Invalid(
        "--deepep-normal-long-seq-round {0}: a pass of up to {1} tokens per rank needs {3} rounds "
        "with --deepep-normal-long-seq-per-round-tokens {2}; raise one of the two, or shorten "
        "passes",
        options.long_seq_rounds, shape.max_tokens, options.long_seq_per_round_tokens, rounds);
  return capacity;
}

}  // namespace

int64_t TokensPerRound(const MoeOptions& options, const ExchangeShape& shape) {
  const int64_t tokens = SplitPass(options, shape);
  CheckHcclBuffer(options, shape, tokens, options.combine_long_seq || tokens < shape.max_tokens);
  return tokens;
}

PassRounds RoundsOfPass(const MoeOptions& options, const ExchangeShape& shape) {
  const int64_t tokens = SplitPass(options, shape), pass = shape.max_tokens;
  const int64_t whole = HcclBufferMib(pass, /*in_rounds=*/false, shape);
  const bool fits = options.hccl_buffer_mib == 0 || whole <= options.hccl_buffer_mib;
  // If the buffer is too small for both, the error states the smaller of the two requirements.
  const bool smaller = whole <= HcclBufferMib(tokens, /*in_rounds=*/true, shape);
  const bool in_rounds = options.combine_long_seq || !(fits || smaller);
  const int64_t combined = in_rounds ? tokens : pass;
  CheckHcclBuffer(options, shape, combined, in_rounds);
  return {.dispatch_tokens = tokens, .combine_tokens = combined};
}

int64_t HcclBufferMib(int64_t tokens, bool in_rounds, const ExchangeShape& shape) {
  constexpr int64_t kMib = int64_t{1} << 20;
  constexpr int64_t kFixed = 102 + 4, kPadding = 20;  // MiB
  const int64_t rows = tokens * (in_rounds ? 3 : 2) * shape.hidden * shape.k;
  return CeilDiv(2 * (kFixed * kMib + rows), kMib) + kPadding;
}

}  // namespace switchyard
