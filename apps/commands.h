// Sub-commands that live in files of their own.
#pragma once

#include <memory>

#include "server/args/args.h"

namespace switchyard {

struct MoeBackends;

// Each returns the program's exit code and throws Error for what the user got wrong.
int RunGenerate(const GenerateArgs& args);
int RunBackends(const ServerArgs& args);
int RunOneBatch(const OneBatchArgs& args);
// bench kernels, moe-layer and exchange.
int RunBench(const BenchArgs& args, const std::shared_ptr<const MoeBackends>& backends);

}  // namespace switchyard
