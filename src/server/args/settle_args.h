// Resolves dependent flags and environment variables after parsing.
#pragma once

#include "server/args/args.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

// Call after `app` has parsed the command line. Resolves older forms of expert parallelism,
// attention groups and hub ids, and checks the names of parsers. Errors name the flags that
// conflict.
void SettleArgs(const CommandLine& app, ServerArgs* args);

// Adds a log line to `taken` for each flag and environment variable below that is set and has no
// effect. --enable-single-batch-overlap has none if the exchange that `moe` selects returns all
// outputs at once. SGLANG_DP_RANK never has one, because requests select their group
// (data_parallel_rank). HCCL_BUFFSIZE and DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ have none if the
// exchange does not run in rounds. Throws kInvalid for a variable with an unsupported value.
void NoteWithoutEffect(const MoeOptions& moe, TakenFlags* taken);

}  // namespace switchyard
