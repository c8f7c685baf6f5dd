// Mistral's formats: [TOOL_CALLS] with a JSON list (up to tokenizer v7), or with name[ARGS]{…}.
#include <array>
#include <optional>
#include <string>

#include "text/output/call_parser.h"
#include "text/output/json_calls.h"

namespace switchyard {
namespace {

class MistralParser : public CallParser {
 public:
  MistralParser(OutputEvents& out, const OfferedTools& tools) : CallParser(out), tools_(tools) {}

 private:
  static constexpr std::string_view kCalls = "[TOOL_CALLS]", kId = "[CALL_ID]", kArgs = "[ARGS]";
  static constexpr std::array kStarts{kCalls};
  static constexpr std::array<std::string_view, 4> kNameEnds{kId, kArgs, kCalls, "{"};
  static constexpr std::array kIdEnds{kArgs, kCalls};
  enum class State { kText, kAfterMarker, kJson, kName, kId, kArguments };

  bool Step() override {
    switch (state_) {
      case State::kText:
        return ReadText();
      case State::kAfterMarker:
        return ReadAfterMarker();
      case State::kJson:
        return ReadJson();
      case State::kName:
        return ReadName();
      case State::kId:
        return ReadId();
      case State::kArguments:
        return ReadArguments();
    }
    return false;
  }

  void AtEnd(bool) override {
    if (state_ == State::kJson) {
      if (reader_->Finish() == JsonCallReader::Status::kMalformed) WriteMalformed();
    } else if (state_ == State::kArguments) {
      EndArguments();
    } else {
      writer_.Content(head_);
    }
    writer_.Content(input_.rest());
  }

  bool ReadText() {
    const PieceBuffer::Found found = input_.Find(kStarts);
    writer_.Content(input_.rest().substr(0, found.begin));
    head_ = found.marker;
    input_.Consume(found.begin + found.marker.size());
    if (!found.marker.empty()) state_ = State::kAfterMarker;
    return !found.marker.empty();
  }

  bool ReadAfterMarker() {
    const std::string_view text = input_.rest();
    const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    head_ += text.substr(0, space);
    input_.Consume(space);
    if (input_.empty()) return false;
    const char c = input_.rest()[0];
    if (c == '[' || c == '{') {
      reader_.emplace(writer_, tools_, JsonCallReader::Options{});
      state_ = State::kJson;
    } else {
      state_ = State::kName;
    }
    return true;
  }

  bool ReadJson() {
    size_t used = 0;
    const JsonCallReader::Status status = reader_->Push(input_.rest(), &used);
    input_.Consume(used);
    if (status == JsonCallReader::Status::kMore) return false;
    if (status == JsonCallReader::Status::kMalformed) {
      WriteMalformed();
    } else {
      writer_.Content(reader_->TakeRaw());
    }
    BeginText();
    return true;
  }

  void WriteMalformed() {
    if (reader_->calls() == 0) writer_.Content(head_);
    writer_.Content(reader_->TakeRaw());
  }

  bool ReadName() {
    const PieceBuffer::Found found = input_.Find(kNameEnds);
    if (found.begin > kMaxCallName || found.marker == kCalls) return BeginText();
    if (found.marker.empty()) return false;
    name_ = TrimMarkupSpace(input_.rest().substr(0, found.begin));
    if (name_.empty() || name_.find_first_of(" \t\r\n") != std::string::npos) return BeginText();
    head_ += input_.rest().substr(0, found.begin);
    input_.Consume(found.begin);
    if (found.marker == kId) {
      head_ += kId;
      input_.Consume(kId.size());
      state_ = State::kId;
    } else {
      if (found.marker == kArgs) input_.Consume(kArgs.size());
      BeginArguments({});
    }
    return true;
  }

  bool ReadId() {
    const PieceBuffer::Found found = input_.Find(kIdEnds);
    if (found.begin > kMaxCallName || found.marker == kCalls) return BeginText();
    if (found.marker.empty()) return false;
    const std::string id(TrimMarkupSpace(input_.rest().substr(0, found.begin)));
    input_.Consume(found.begin + kArgs.size());
    BeginArguments(id);
    return true;
  }

  void BeginArguments(const std::string& id) {
    writer_.BeginCall(name_, id);
    value_ = {};
    empty_ = true;
    state_ = State::kArguments;
  }

  // Reads one JSON value and writes it unchanged as the arguments.
  bool ReadArguments() {
    if (empty_) input_.ConsumeSpace();
    const std::string_view text = input_.rest();
    size_t bytes = 0;
    auto place = JsonValueEnd::Place::kInside;
    while (bytes < text.size() && place == JsonValueEnd::Place::kInside) {
      place = value_.Push(text[bytes]);
      if (place != JsonValueEnd::Place::kAfter) ++bytes;
    }
    empty_ = empty_ && bytes == 0;
    writer_.Arguments(text.substr(0, bytes));
    input_.Consume(bytes);
    if (place == JsonValueEnd::Place::kInside) return false;
    EndArguments();
    return BeginText();
  }

  void EndArguments() {
    if (empty_) writer_.Arguments("{}");
    writer_.EndCall();
    head_.clear();
  }

  // Returns to plain text. If the call did not begin, the part that has been read becomes content.
  bool BeginText() {
    if (state_ == State::kName || state_ == State::kId) writer_.Content(head_);
    head_.clear();
    state_ = State::kText;
    return true;
  }

  const OfferedTools& tools_;
  State state_ = State::kText;
  std::string head_;  // text of the present call that became no event
  std::string name_;
  std::optional<JsonCallReader> reader_;
  JsonValueEnd value_;
  bool empty_ = true;  // no arguments so far
};

}  // namespace

std::unique_ptr<CallParser> MakeMistralParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<MistralParser>(out, tools);
}

}  // namespace switchyard
