// Lines of a user, and the file of earlier ones.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "chat/signals.h"

namespace switchyard::chat {

// Lines that the user types, or that a pipe sends.

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

// The lines that users typed in earlier chats.

// A file with one line per text, readable by its owner only. Several chats may append at the same
// time. Failures are not errors: a chat works without its history.
class HistoryFile {
 public:
  static constexpr size_t kMost = 1000;  // texts kept

  explicit HistoryFile(std::filesystem::path path) : path_(std::move(path)) {}

  // $XDG_STATE_HOME/switchyard/chat_history, default ~/.local/state/...; "" without a home.
  static std::filesystem::path DefaultPath();

  // The last kMost texts, oldest first. Shortens the file if it has more than twice as many.
  std::vector<std::string> Load() const;
  void Append(const std::string& text) const;

 private:
  const std::filesystem::path path_;  // "": no history
};

}  // namespace switchyard::chat
