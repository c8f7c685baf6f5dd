// Flags that select the parsers of tool calls and reasoning.
#pragma once

#include "server/args/args.h"

namespace switchyard {

class CommandLine;

// Adds --tool-call-parser and --reasoning-parser.
void AddParserFlags(CommandLine& app, ServerArgs& args, const char* group);

// Throws kInvalid for an unknown name of a parser, with the list of names.
void CheckParserFlags(const ServerArgs& args);

}  // namespace switchyard
