// SGLang's flags that this server does not implement. They are accepted without effect, or refused
// by name.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace switchyard {

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

}  // namespace switchyard
