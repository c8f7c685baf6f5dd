// Separates reasoning between markers, such as <think> and </think>, from the text after it.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/output/output_events.h"

namespace switchyard {

// Reasoning is only at the start of an output: either the output begins with the opening marker, or
// the prompt has opened the reasoning already. Later markers are text. Line breaks next to the
// markers belong to them. Markers around the content after the reasoning are dropped. One output,
// one thread at a time.
class ReasoningSplitter {
 public:
  struct Markers {
    std::string_view open, close;
    // The marker of a tool call, which ends the reasoning if `close` is missing. May be empty.
    std::string_view call;
    // Around the content; empty: none.
    std::string_view content_open = {}, content_close = {};
    // May precede content_open, or content without it; dropped. Empty: none.
    std::string_view turn = {};
  };
  enum class Start {
    kUndecided,  // in reasoning if the output begins with the opening marker
    kReasoning,  // in reasoning; an opening marker may follow
    kContent,    // after reasoning, or in content
  };
  // Does not own `out` and the texts of `markers`. Reasoning goes to `out`.
  ReasoningSplitter(OutputEvents& out, const Markers& markers, Start start);

  // Adds a piece of the output. Returns the content in it.
  std::string Push(std::string_view text);
  std::string Finish();

  bool reasoning() const {
    return state_ == State::kReasoningStart || state_ == State::kReasoningLines ||
           state_ == State::kReasoning;
  }

 private:
  enum class State {
    kStart,           // before an opening marker
    kReasoningStart,  // in reasoning, before an opening marker that may follow
    kReasoningLines,  // in the newlines between the opening marker and the reasoning
    kReasoning,
    kContentStart,  // in the newlines before the content
    kContentOpen,   // before a marker around the content that may follow
    kInnerStart,    // in the newlines after this marker
    kInner,         // in the content between the markers
    kContent,
  };

  bool Step(std::string* content);
  bool ReadStart(std::string* content);
  bool ReadReasoning();
  bool ReadContentOpen();
  // Reads content before its closing marker.
  bool ReadInner(std::string* content);
  // The text of a part that ends with newlines, which are held back in lines_.
  std::string WithoutLastLines(std::string_view text);
  bool SkipLineEnds(State next);

  OutputEvents& out_;
  const std::string_view open_;
  std::array<std::string_view, 2> ends_;  // close and call
  size_t end_count_;
  const std::string_view content_open_, turn_;
  const std::array<std::string_view, 1> content_ends_;
  State state_;
  PieceBuffer input_;
  std::string lines_;  // newlines at the end of the present part so far, held back
};

}  // namespace switchyard
