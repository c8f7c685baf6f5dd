// Flags that depend on others, and SGLang's flags without effect.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "server/args/args.h"

namespace switchyard {

// SGLang's flags that this server does not implement. They are accepted without effect, or refused
// by name.

class CommandLine;

struct SglangFlag {
  enum class Kind : uint8_t {
    kWithoutEffect,  // accepted: a log line at startup gives the reason `why`
    kRefused,        // an error with the reason `why`: the flag would change results
  };
  const char* name;  // includes the leading dashes
  int values = 0;    // number of values; -1: one or more
  Kind kind = Kind::kWithoutEffect;
  const char* why = "";
  const char* harmless = nullptr;  // the only accepted value of a refused flag; null: none
};

// All flags, each name once.
std::span<const SglangFlag> SglangFlags();

// The flags without effect on one command line.
struct TakenFlags {
  std::vector<std::string> without_effect;  // lines for the log, each flag once
};
// Adds the flags to `app`, hidden from its help. Parsing fills `taken`, which must outlive `app`,
// and throws kInvalid for a refused flag.
void AddSglangFlags(CommandLine& app, TakenFlags* taken);

// Resolves dependent flags and environment variables after parsing.

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
