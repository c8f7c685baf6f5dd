// Resolves dependent flags and environment variables after parsing.
#pragma once

#include "server/args/args.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

// Call after `app` has parsed the command line. Resolves older forms of expert parallelism,
// attention groups and hub ids, and checks the names of parsers. Errors name the flags that
// conflict.
void SettleArgs(const CommandLine& app, ServerArgs* args);

// Adds a log line to `taken` for each of the following flags and environment variables that is set
// but has no effect. SGLANG_DP_RANK never has an effect, because requests select their attention
// group (data_parallel_rank). --enable-single-batch-overlap has no effect if the exchange returns
// all outputs in one part. HCCL_BUFFSIZE and DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ have no effect
// if the exchange does not run in rounds. Throws kInvalid for a variable with an unsupported value.
void NoteWithoutEffect(const MoeOptions& moe, TakenFlags* taken);

}  // namespace switchyard
