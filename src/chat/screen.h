// Output of a chat to a terminal, without control characters of the model.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "chat/chat_client.h"

namespace switchyard::chat {

// Text of a server, as it may be shown on a terminal.

// The text without control characters, except for line ends and tabs. Bytes of UTF-8 are kept.
std::string WithoutControls(std::string_view text);

// For messages: at most 500 bytes of the text without control characters and without white space at
// its end. The text is cut between two characters of UTF-8.
std::string Shortened(std::string_view text);

// Output of a chat: the answers on stdout, and messages.

// Writes to stdout and stderr. On a terminal, messages go to stdout too, and control characters of
// texts are removed, so that a model cannot send escape sequences. Throws Error kPeer if stdout
// cannot be written.
class Screen {
 public:
  struct Properties {
    bool terminal = false;  // stdout is a terminal
    bool colours = false;   // and shows colours
  };

  explicit Screen(Properties properties) : properties_(properties) {}

  // From isatty(), NO_COLOR (https://no-color.org) and TERM.
  static Properties OfThisProcess();

  bool terminal() const { return properties_.terminal; }
  bool colours() const { return properties_.colours; }

  void Text(std::string_view text);         // of the answer
  void Dimmed(std::string_view text);       // reasoning: stdout on a terminal, else stderr
  void Note(std::string_view line);         // a dimmed line of its own; not shown in pipes
  void Failure(std::string_view message);   // a line of its own, on stderr
  void ReplaceLine(std::string_view line);  // overwrites the present line of the terminal

 private:
  void Write(std::string_view bytes);

  const Properties properties_;
};

enum class ReasoningMode {
  kShow,  // dimmed, before the answer
  kFold,  // one line with the number of words
  kHide,
};

// Prints one answer as it is received.
class AnswerPrinter {
 public:
  AnswerPrinter(Screen& screen, ReasoningMode mode)
      : screen_(screen), mode_(mode), start_(Clock::now()) {}

  void Print(const AnswerPart& part);
  // Call once, also after an error or Ctrl-C. Ends the last line.
  void End();

 private:
  using Clock = std::chrono::steady_clock;

  void PrintReasoning(const std::string& text);
  void PrintContent(std::string_view text);
  void EndReasoning();

  Screen& screen_;
  const ReasoningMode mode_;
  const Clock::time_point start_;
  bool in_reasoning_ = false;
  bool in_word_ = false;
  size_t words_ = 0;  // of reasoning
  bool in_content_ = false;
  bool line_open_ = false;  // the last character printed is no line end
};

}  // namespace switchyard::chat
