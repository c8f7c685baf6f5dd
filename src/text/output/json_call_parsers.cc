// Formats whose calls are JSON objects with name and arguments: Hermes and its variants, and
// Llama 3.
#include <array>
#include <optional>
#include <string>

#include "text/output/call_parser.h"
#include "text/output/json_calls.h"

namespace switchyard {
namespace {

using Status = JsonCallReader::Status;

// Calls between two markers. An empty closing marker: the calls end where the JSON ends.
class HermesParser : public CallParser {
 public:
  HermesParser(OutputEvents& out, const OfferedTools& tools, std::string_view open,
               std::string_view close)
      : CallParser(out),
        open_(open),
        close_(close),
        opens_{open},
        both_{open, close},
        tools_(tools) {}

 private:
  enum class State { kText, kCalls, kTail };

  bool Step() override {
    switch (state_) {
      case State::kText:
        return ReadText();
      case State::kCalls:
        return ReadCalls();
      case State::kTail:
        return ReadTail();
    }
    return false;
  }

  void AtEnd(bool) override {
    if (state_ == State::kCalls && reader_->Finish() == Status::kMalformed) WriteMalformed();
    writer_.Content(input_.rest());
  }

  bool ReadText() {
    const PieceBuffer::Found found = unclosed_ ? input_.Find(both_) : input_.Find(opens_);
    writer_.Content(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin + found.marker.size());
    if (found.marker == open_) {
      reader_.emplace(writer_, tools_, JsonCallReader::Options{.stop = close_});
      state_ = State::kCalls;
    }
    unclosed_ = unclosed_ && found.marker.empty();
    return !found.marker.empty();
  }

  bool ReadCalls() {
    size_t used = 0;
    const Status status = reader_->Push(input_.rest(), &used);
    input_.Consume(used);
    if (status == Status::kMore) return false;
    if (status == Status::kMalformed) {
      WriteMalformed();
      unclosed_ = reader_->calls() > 0 && !close_.empty();
      state_ = State::kText;
      return true;
    }
    const std::string raw = reader_->TakeRaw();
    if (close_.empty() || !IsBlank(raw)) writer_.Content(raw);
    state_ = close_.empty() ? State::kText : State::kTail;
    return true;
  }

  // If no call was read, the opening marker becomes content too.
  void WriteMalformed() {
    if (reader_->calls() == 0) writer_.Content(open_);
    writer_.Content(reader_->TakeRaw());
  }

  // Reads the text after a call: white space, superfluous closing braces, and the closing marker.
  bool ReadTail() {
    input_.ConsumeSpace();
    if (input_.empty()) return false;
    if (input_.rest()[0] == '}') {
      input_.Consume(1);
      return true;
    }
    const PieceBuffer::Match match = input_.StartsWith(close_);
    if (match == PieceBuffer::Match::kPartly) return false;
    if (match == PieceBuffer::Match::kYes) input_.Consume(close_.size());
    unclosed_ = match == PieceBuffer::Match::kNo;
    state_ = State::kText;
    return true;
  }

  const std::string_view open_, close_;
  const std::array<std::string_view, 1> opens_;
  const std::array<std::string_view, 2> both_;
  const OfferedTools& tools_;
  State state_ = State::kText;
  std::optional<JsonCallReader> reader_;
  bool unclosed_ = false;  // a call's closing marker is still to come
};

class Llama3Parser : public CallParser {
 public:
  Llama3Parser(OutputEvents& out, const OfferedTools& tools) : CallParser(out), tools_(tools) {}

 private:
  static constexpr std::string_view kTag = "<|python_tag|>";
  static constexpr std::array kTags{kTag};
  enum class State { kStart, kText, kCalls };

  bool Step() override {
    switch (state_) {
      case State::kStart:
        return ReadStart();
      case State::kText:
        return ReadText();
      case State::kCalls:
        return ReadCalls();
    }
    return false;
  }

  void AtEnd(bool) override {
    if (state_ == State::kCalls && reader_->Finish() == Status::kMalformed) WriteMalformed();
    writer_.Content(input_.rest());
  }

  bool ReadStart() {
    const std::string_view text = input_.rest();
    const size_t begin = text.find_first_not_of(" \t\r\n");
    writer_.Content(text.substr(0, begin));
    input_.Consume(std::min(begin, text.size()));
    if (input_.empty()) return false;
    if (input_.rest()[0] == '{') {
      BeginCalls({});
    } else {
      state_ = State::kText;
    }
    return true;
  }

  bool ReadText() {
    const PieceBuffer::Found found = input_.Find(kTags);
    writer_.Content(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin + found.marker.size());
    if (!found.marker.empty()) BeginCalls(kTag);
    return !found.marker.empty();
  }

  void BeginCalls(std::string_view tag) {
    tag_ = tag;
    reader_.emplace(writer_, tools_,
                    JsonCallReader::Options{.stop = {}, .offered_only = tag.empty()});
    state_ = State::kCalls;
  }

  bool ReadCalls() {
    size_t used = 0;
    const Status status = reader_->Push(input_.rest(), &used);
    input_.Consume(used);
    if (status == Status::kMore) return false;
    if (status == Status::kMalformed) {
      WriteMalformed();
    } else {
      writer_.Content(reader_->TakeRaw());
    }
    state_ = State::kText;
    return true;
  }

  void WriteMalformed() {
    if (reader_->calls() == 0) writer_.Content(tag_);
    writer_.Content(reader_->TakeRaw());
  }

  const OfferedTools& tools_;
  State state_ = State::kStart;
  std::optional<JsonCallReader> reader_;
  std::string_view tag_;  // tag before the current calls
};

}  // namespace

std::unique_ptr<CallParser> MakeHermesParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<HermesParser>(out, tools, "<tool_call>", "</tool_call>");
}

std::unique_ptr<CallParser> MakeGraniteParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<HermesParser>(out, tools, "<|tool_call|>", "");
}

std::unique_ptr<CallParser> MakeHunyuanA13bParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<HermesParser>(out, tools, "<tool_calls>", "</tool_calls>");
}

std::unique_ptr<CallParser> MakeLongcatParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<HermesParser>(out, tools, "<longcat_tool_call>", "</longcat_tool_call>");
}

std::unique_ptr<CallParser> MakeLlama3Parser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<Llama3Parser>(out, tools);
}

}  // namespace switchyard
