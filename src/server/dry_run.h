// `switchyard serve --dry-run`.
#pragma once

#include <string>

#include "server/args/args.h"
#include "server/ranks/launch.h"

namespace switchyard {

// What this node of `serve` would run, one property a line: model, layout, ranks, device, formats,
// memory and address. Ends with a newline. Makes the checks that `serve` makes before it starts
// ranks, and throws the same errors: flags, keys, the checkpoint's files, tokenizer, chat template,
// and the memory of this host.
//
// With --device cuda on a machine without GPUs, the layout is checked, but GPU memory is not.
std::string ServeLayoutText(const ServerArgs& args, const Launch& launch);

}  // namespace switchyard
