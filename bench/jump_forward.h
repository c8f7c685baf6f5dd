// Jump-forward decoding: time and steps of the same outputs with and without it.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::bench {

struct JumpForwardArgs {
  std::string model;
  int32_t tokens = 128, tp = 1, repeat = 5;
  double temperature = 0;
  bool examples = true;  // prompts begin with examples of outputs
};

// Compares an engine with jump-forward decoding and one without; they run in alternation. The
// grammars force much, some or no text; 1 or 32 requests run at a time. Prints the tokens of a
// request per step, the acceptance of drafts, and the tokens per second of both engines. Throws if
// their outputs differ.
void ReportJumpForward(const JumpForwardArgs& args);

}  // namespace switchyard::bench
