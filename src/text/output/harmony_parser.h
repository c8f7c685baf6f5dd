// The harmony format of gpt-oss: messages with a channel and an optional recipient.
#pragma once

#include <string>
#include <string_view>

#include "text/output/output_events.h"

namespace switchyard {

// Splits messages by their channel: analysis becomes reasoning, final and commentary become
// content. A message to functions.NAME is a tool call, and its text the arguments. Consecutive
// messages of one kind are joined by a newline. Text without any channel is content. A header that
// is truncated by the end of the output gives no text. One output, one thread at a time.
class HarmonyParser {
 public:
  // Does not own `out`. `tools`: whether messages with a recipient become calls; otherwise they
  // become reasoning or content by their channel. `prompt`: the end of the prompt. If it contains
  // the beginning of a message of the assistant, the output continues that message.
  HarmonyParser(OutputEvents& out, bool tools, std::string_view prompt);

  void Push(std::string_view text);
  void Finish(bool complete);

  bool reasoning() const { return state_ == State::kBody && target_ == Target::kReasoning; }

 private:
  enum class State {
    kStart,    // before the first header
    kHeader,   // in a header, up to <|message|>
    kBody,     // in a message
    kBetween,  // after a message
  };
  enum class Target { kReasoning, kContent, kCall };

  bool Step();
  bool ReadStart();
  bool ReadHeader();
  bool ReadBody();
  bool ReadBetween();
  void BeginMessage(std::string_view header);
  void EndMessage(bool complete);
  void Write(std::string_view text);

  OutputEvents& out_;
  const bool tools_;
  State state_ = State::kStart;
  Target target_ = Target::kContent;
  PieceBuffer input_;
  bool has_reasoning_ = false, has_content_ = false;  // written so far
  bool first_ = true;                                 // the present message has no text so far
  std::string held_;  // white space at the end of a call's arguments
};

}  // namespace switchyard
