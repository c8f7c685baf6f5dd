// Flags of single features: pipeline stages, speculative decoding, prefill and decode workers,
// parsers of outputs, batches of a benchmark.
#pragma once

#include <span>
#include <string>

#include "core/command_line.h"
#include "engine/config.h"
#include "server/args/args.h"

namespace switchyard {

// Flags of pipeline stages.

class CommandLine;
struct TakenFlags;

// `group`: the heading in the help.
void AddPipelineFlags(CommandLine& app, EngineConfig& e, const char* group);

// SGLang's older spelling of --pp-max-micro-batch-size, --max-micro-batch-size, is accepted without
// --pp-size. Whether `words` have it; after parsing, adds a line to `taken` if it has no effect.
bool HasMaxMicroBatchSize(std::span<const std::string> words);
void SettleMaxMicroBatchSize(EngineConfig& e, TakenFlags* taken);

// Flags of ranks with experts only, and of ranks with unequal numbers of experts or speeds.
void AddExpertRankFlags(CommandLine& app, ServerArgs& args, const char* group);

// The flag of `serve` that forbids to place experts on CPUs beside a GPU.
void AddCpuExpertsFlag(CommandLine& app, ServerArgs& args, const char* group);

// The flags of speculative decoding.

void AddSpeculativeFlags(CommandLine& app, EngineConfig& e);

// Flags of prefill and decode workers.

void AddDisaggregationFlags(CommandLine& app, ServerArgs& args);
// Error kInvalid if a flag has no effect without --disaggregation-mode. After parsing.
void CheckDisaggregationFlags(const CommandLine& app, const ServerArgs& args);

// Flags that select the parsers of tool calls and reasoning.

// Adds --tool-call-parser and --reasoning-parser.
void AddParserFlags(CommandLine& app, ServerArgs& args, const char* group);

// Throws kInvalid for an unknown name of a parser, with the list of names.
void CheckParserFlags(const ServerArgs& args);

// The flags of `bench one-batch` that are no flags of the engine.
void AddOneBatchFlags(CommandLine& app, OneBatchArgs& args);

}  // namespace switchyard
