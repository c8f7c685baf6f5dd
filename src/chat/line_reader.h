// Lines that the user types, or that a pipe sends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "chat/signals.h"

namespace switchyard::chat {

struct InputLine {
  enum class Kind {
    kText,
    kEnd,        // end of the input, or Ctrl-D
    kCancelled,  // Ctrl-C: the line is discarded
  };
  Kind kind = Kind::kEnd;
  std::string text;  // without the line end; pasted texts may have several lines
};

// Reads stdin. Use on one thread. Throws Interrupted for SIGTERM and SIGHUP.
class LineReader {
 public:
  virtual ~LineReader() = default;
  // Shows the prompt and a space before the line.
  virtual InputLine Read(const std::string& prompt) = 0;
  virtual void Remember(const std::string& text) = 0;  // adds to the lines of the arrow keys
};

// Reads lines without editing. Ctrl-C throws Interrupted unless `terminal`. The prompt is shown
// only if `terminal`.
std::unique_ptr<LineReader> MakePlainReader(Signals& signals, bool terminal);

// Line editing with libedit, which is loaded at run time, so the program starts without it. Needs
// terminals as stdin and stdout. Returns null if the library is missing or the terminal is dumb.
// `colours`: the prompt is bold.
std::unique_ptr<LineReader> MakeEditingReader(Signals& signals, bool colours);

}  // namespace switchyard::chat
