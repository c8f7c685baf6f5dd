// Resolves dependent flags and environment variables after parsing.
#pragma once

#include "server/args/args.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

// Call after `app` has parsed the command line. Resolves older forms of expert parallelism,
// attention groups and hub ids, and checks the names of parsers. Errors name the flags that
// conflict.
void SettleArgs(const CommandLine& app, ServerArgs* args);

// Adds a log line to `taken` for each environment variable that is set and has no effect.
// SGLANG_DP_RANK never has an effect, because requests select their group (data_parallel_rank).
// HCCL_BUFFSIZE and DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ have no effect if the exchange that `moe`
// selects does not run in rounds. Throws kInvalid for a variable with an unsupported value.
void NoteEnvironment(const MoeOptions& moe, TakenFlags* taken);

}  // namespace switchyard
