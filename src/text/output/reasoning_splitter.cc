#include "text/output/reasoning_splitter.h"

#include <algorithm>
#include <utility>

namespace switchyard {

ReasoningSplitter::ReasoningSplitter(OutputEvents& out, const Markers& markers, Start start)
    : out_(out),
      open_(markers.open),
      ends_{markers.close, markers.call},
      end_count_(markers.call.empty() ? 1 : 2),
      content_open_(markers.content_open),
      turn_(markers.turn),
      content_ends_{markers.content_close} {
  state_ = start == Start::kUndecided     ? State::kStart
           : start == Start::kReasoning   ? State::kReasoningStart
           : markers.content_open.empty() ? State::kContent
                                          : State::kContentOpen;
}

std::string ReasoningSplitter::Push(std::string_view text) {
  if (state_ == State::kContent && input_.empty()) return std::string(text);
  input_.Append(text);
  std::string content;
  while (Step(&content)) {
  }
  return content;
}

std::string ReasoningSplitter::Finish() {
  input_.End();
  std::string content;
  while (Step(&content)) {
  }
  if (state_ == State::kReasoning) out_.Reasoning(lines_);
  if (state_ == State::kInner) content += lines_;
  if (state_ == State::kStart) content += input_.rest();
  return content;
}

bool ReasoningSplitter::Step(std::string* content) {
  switch (state_) {
    case State::kStart:
    case State::kReasoningStart:
      return ReadStart(content);
    case State::kReasoningLines:
      return SkipLineEnds(State::kReasoning);
    case State::kReasoning:
      return ReadReasoning();
    case State::kContentStart:
      return SkipLineEnds(content_open_.empty() ? State::kContent : State::kContentOpen);
    case State::kContentOpen:
      return ReadContentOpen();
    case State::kInnerStart:
      return SkipLineEnds(State::kInner);
    case State::kInner:
      return ReadInner(content);
    case State::kContent:
      *content += input_.rest();
      input_.Consume(input_.rest().size());
      return false;
  }
  return false;
}

// White space may precede the opening marker. Without a marker, the white space is part of the
// text.
bool ReasoningSplitter::ReadStart(std::string* content) {
  const std::string_view text = input_.rest();
  const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view word = text.substr(space);
  if (word.starts_with(open_)) {
    input_.Consume(space + open_.size());
  } else if (open_.starts_with(word) && !input_.ended()) {
    return false;
  } else if (state_ == State::kStart) {
    if (word.empty()) return false;
    if (!content_open_.empty()) {
      state_ = State::kContentOpen;
      return true;
    }
    *content += text;
    input_.Consume(text.size());
    state_ = State::kContent;
    return true;
  }
  state_ = State::kReasoningLines;
  return true;
}

bool ReasoningSplitter::ReadReasoning() {
  const PieceBuffer::Found found = input_.Find({ends_.data(), end_count_});
  out_.Reasoning(WithoutLastLines(input_.rest().substr(0, found.begin)));
  input_.Consume(found.begin);
  if (found.marker.empty()) return false;
  if (found.marker == ends_[0]) input_.Consume(found.marker.size());
  lines_.clear();
  state_ = State::kContentStart;
  return true;
}

std::string ReasoningSplitter::WithoutLastLines(std::string_view text) {
  const size_t last = text.find_last_not_of('\n');
  if (last == std::string_view::npos) {
    lines_ += text;
    return {};
  }
  std::string all = std::move(lines_);
  all += text.substr(0, last + 1);
  lines_ = text.substr(last + 1);
  return all;
}

// White space may precede the marker. Without a marker, the white space is part of the content.
bool ReasoningSplitter::ReadContentOpen() {
  const std::string_view text = input_.rest();
  const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view word = text.substr(space);
  if (!turn_.empty() && word.starts_with(turn_)) {
    input_.Consume(space + turn_.size());
    return true;
  }
  if (word.starts_with(content_open_)) {
    input_.Consume(space + content_open_.size());
    state_ = State::kInnerStart;
    return true;
  }
  const bool partly = content_open_.starts_with(word) || turn_.starts_with(word);
  if (partly && !input_.ended()) return false;
  state_ = State::kContent;
  return true;
}

bool ReasoningSplitter::ReadInner(std::string* content) {
  const PieceBuffer::Found found = input_.Find(content_ends_);
  *content += WithoutLastLines(input_.rest().substr(0, found.begin));
  input_.Consume(found.begin);
  if (found.marker.empty()) return false;
  input_.Consume(found.marker.size());
  lines_.clear();
  state_ = State::kContentStart;
  return true;
}

bool ReasoningSplitter::SkipLineEnds(State next) {
  const std::string_view text = input_.rest();
  input_.Consume(std::min(text.find_first_not_of('\n'), text.size()));
  if (input_.empty()) return false;
  state_ = next;
  return true;
}

}  // namespace switchyard
