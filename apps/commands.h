// Sub-commands that live in files of their own.
#pragma once

#include "server/args/args.h"

namespace switchyard {

// Each returns the program's exit code and throws Error for what the user got wrong.
int RunGenerate(const GenerateArgs& args);
int RunBackends(const ServerArgs& args);
int RunOneBatch(const OneBatchArgs& args);

}  // namespace switchyard
