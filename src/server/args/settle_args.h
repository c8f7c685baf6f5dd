// From flags as they are given to arguments that agree with one another.
#pragma once

#include "server/args/args.h"
#include "server/args/sglang_flags.h"

namespace switchyard {

// After parsing by `app`: older forms of expert parallelism, attention groups, hub ids. Error
// names the flags that do not fit.
void SettleArgs(const CLI::App& app, ServerArgs* args);

// SGLANG_DP_RANK, by which SGLang's router numbers the servers that it starts, is checked and has a
// line in `taken`: requests name their group themselves (data_parallel_rank).
void NoteDpRank(TakenFlags* taken);

}  // namespace switchyard
