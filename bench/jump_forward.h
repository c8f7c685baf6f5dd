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

// Prints, for grammars that force much, some and no text, and for 1 and 32 requests at a time:
// tokens of a request per step, acceptance of drafts, and tokens per second of both engines, which
// run in alternation. Throws if their outputs differ.
void ReportJumpForward(const JumpForwardArgs& args);

}  // namespace switchyard::bench
