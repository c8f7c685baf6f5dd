// From flags as they are given to arguments that agree with one another.
#pragma once

#include "server/args/args.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

// After parsing by `app`: older forms of expert parallelism, attention groups, hub ids. Error
// names the flags that do not fit.
void SettleArgs(const CommandLine& app, ServerArgs* args);

// Adds a line to `taken` for each variable that is set and has no effect here. SGLANG_DP_RANK, by
// which SGLang's router numbers the servers that it starts: requests name their group themselves
// (data_parallel_rank). HCCL_BUFFSIZE if no exchange of `moe` runs in rounds. Error kInvalid names
// a variable with an unsupported value.
void NoteEnvironment(const MoeOptions& moe, TakenFlags* taken);

}  // namespace switchyard
