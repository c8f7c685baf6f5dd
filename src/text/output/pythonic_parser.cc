// Calls in Python's syntax: Llama 4, and small Llama 3.2 models.
#include <array>
#include <string>

#include "text/output/call_parser.h"
#include "text/output/python_literal.h"

namespace switchyard {
namespace {

// Reads a list of calls byte by byte and finds its end. Returns kNoCalls at the first byte that
// cannot belong to the head of such a list.
class CallListEnd {
 public:
  enum class Place { kInside, kLast, kNoCalls };

  Place Push(char c) {
    if (head_ != Head::kDone && !PushHead(c)) return Place::kNoCalls;
    if (quote_ != 0) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == quote_) {
        quote_ = 0;
      }
      return Place::kInside;
    }
    if (c == '"' || c == '\'') {
      quote_ = c;
    } else if (c == '[' || c == '(' || c == '{') {
      ++depth_;
    } else if ((c == ']' || c == ')' || c == '}') && --depth_ == 0) {
      return Place::kLast;
    }
    return Place::kInside;
  }

 private:
  enum class Head { kBracket, kBeforeName, kName, kAfterName, kDone };

  // Reads the head of the first call: "[", a name, "(".
  bool PushHead(char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool space = IsMarkupSpace(c);
    switch (head_) {
      case Head::kBracket:
        head_ = Head::kBeforeName;
        return c == '[';
      case Head::kBeforeName:
        if (letter) head_ = Head::kName;
        return letter || space;
      case Head::kName:
        if (space) head_ = Head::kAfterName;
        if (c == '(') head_ = Head::kDone;
        return letter || space || c == '(' || c == '.' || (c >= '0' && c <= '9');
      case Head::kAfterName:
        if (c == '(') head_ = Head::kDone;
        return space || c == '(';
      case Head::kDone:
        break;
    }
    return true;
  }

  Head head_ = Head::kBracket;
  int64_t depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
};

class PythonicParser : public CallParser {
 public:
  PythonicParser(OutputEvents& out, const OfferedTools& tools) : CallParser(out), tools_(tools) {}

 private:
  static constexpr std::string_view kOpen = "<|python_start|>", kClose = "<|python_end|>";
  static constexpr std::array kOpens{kOpen};
  enum class State { kStart, kText, kList, kAfterList };

  bool Step() override {
    switch (state_) {
      case State::kStart:
        return ReadStart();
      case State::kText:
        return ReadText();
      case State::kList:
        return ReadList();
      case State::kAfterList:
        return ReadAfterList();
    }
    return false;
  }

  void AtEnd(bool) override {
    writer_.Content(raw_);
    writer_.Content(list_);
    writer_.Content(input_.rest());
  }

  bool ReadStart() {
    const std::string_view text = input_.rest();
    const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    writer_.Content(text.substr(0, space));
    input_.Consume(space);
    if (input_.empty()) return false;
    state_ = State::kText;
    if (input_.rest()[0] == '[') BeginList();
    return true;
  }

  bool ReadText() {
    const PieceBuffer::Found found = input_.Find(kOpens);
    writer_.Content(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin + found.marker.size());
    if (found.marker.empty()) return false;
    raw_ = kOpen;
    BeginList();
    return true;
  }

  void BeginList() {
    end_ = {};
    list_.clear();
    state_ = State::kList;
  }

  bool ReadList() {
    const std::string_view text = input_.rest();
    size_t bytes = 0;
    auto place = CallListEnd::Place::kInside;
    while (bytes < text.size() && place == CallListEnd::Place::kInside) {
      const bool space = list_.empty() && bytes == 0 && IsMarkupSpace(text[0]);
      if (space) {  // after the marker
        raw_ += text[0];
        input_.Consume(1);
        return true;
      }
      place = end_.Push(text[bytes]);
      if (place == CallListEnd::Place::kNoCalls) break;
      const bool ascii = static_cast<unsigned char>(text[bytes++]) < 0x80;
      if (list_.size() + bytes > kMaxCallHead && ascii) place = CallListEnd::Place::kNoCalls;
    }
    list_ += text.substr(0, bytes);
    input_.Consume(bytes);
    if (place == CallListEnd::Place::kInside) return false;
    if (place == CallListEnd::Place::kLast && WriteCalls()) {
      raw_.clear();
      state_ = State::kAfterList;
    } else {
      writer_.Content(raw_);
      writer_.Content(list_);
      raw_.clear();
      state_ = State::kText;
    }
    list_.clear();
    return true;
  }

  // Writes the calls of the list and returns true if all of them are calls of offered tools.
  // Otherwise writes no event and returns false.
  bool WriteCalls() {
    const auto calls = ParsePythonCalls(list_);
    if (!calls) return false;
    for (const PythonCall& call : *calls) {
      if (!tools_.Has(call.name)) return false;
    }
    for (const PythonCall& call : *calls) {
      writer_.BeginCall(call.name);
      writer_.Arguments(call.arguments);
      writer_.EndCall();
    }
    return true;
  }

  bool ReadAfterList() {
    input_.ConsumeSpace();
    if (input_.empty()) return false;
    const PieceBuffer::Match match = input_.StartsWith(kClose);
    if (match == PieceBuffer::Match::kPartly) return false;
    if (match == PieceBuffer::Match::kYes) input_.Consume(kClose.size());
    state_ = State::kText;
    return true;
  }

  const OfferedTools& tools_;
  State state_ = State::kStart;
  CallListEnd end_;
  std::string raw_;   // the marker before the present list
  std::string list_;  // the present list
};

}  // namespace

std::unique_ptr<CallParser> MakePythonicParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<PythonicParser>(out, tools);
}

}  // namespace switchyard
