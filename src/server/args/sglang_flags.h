// SGLang's flags that this engine has no use for: taken without effect, or refused by name.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace switchyard {

class CommandLine;

struct SglangFlag {
  enum class Kind : uint8_t {
    kWithoutEffect,  // changes no result: one line at start says `why`
    kRefused,        // would change what clients get: an error says `why`
  };
  const char* name;  // with dashes
  int values = 0;    // that follow it; -1: one or more
  Kind kind = Kind::kWithoutEffect;
  const char* why = "";
  const char* harmless = nullptr;  // of a refused flag: the value that asks for nothing
};

// All of them, each name once.
std::span<const SglangFlag> SglangFlags();

// What the command line has of them.
struct TakenFlags {
  std::vector<std::string> without_effect;  // lines for the log, each flag once
};
// Adds them to `app`, hidden from its help. After parsing `taken`, which outlives `app`, has the
// lines. Parsing a refused flag throws Error kInvalid.
void AddSglangFlags(CommandLine& app, TakenFlags* taken);

}  // namespace switchyard
