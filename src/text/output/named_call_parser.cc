// Formats that write a call's name between markers, and then its arguments as plain JSON: DeepSeek,
// Kimi-K2 and Solar Open.
#include <array>
#include <string>

#include "text/output/call_parser.h"

namespace switchyard {
namespace {

struct NamedFormat {
  std::string_view section_begin, section_end, call_begin, separator, call_end;
  bool fenced = false;           // after `separator`: NAME, newline, ```json, arguments, ```
  bool id = false;               // the head is an id: functions.NAME:INDEX
  std::string_view id_end = {};  // the head is an id, this marker and the name; empty: no id
};

// The function's name in "functions.NAME:INDEX".
std::string_view NameOfId(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const size_t colon = id.rfind(':');
  const bool index = colon != std::string_view::npos && colon > 0 && colon + 1 < id.size() &&
                     id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return index ? id.substr(0, colon) : id;
}

class NamedCallParser : public CallParser {
 public:
  NamedCallParser(OutputEvents& out, const NamedFormat& format)
      : CallParser(out),
        format_(format),
        text_markers_{format.section_begin, format.call_begin},
        section_markers_{format.section_begin, format.call_begin, format.section_end},
        head_markers_{format.separator, format.call_begin, format.call_end, format.section_end},
        fence_markers_{kFence, format.call_begin, format.call_end, format.section_end},
        end_markers_{format.call_end, format.call_begin, format.section_end} {}

 private:
  static constexpr std::string_view kFence = "```json", kFenceEnd = "```";
  enum class State { kText, kSection, kHead, kFence, kArguments };

  bool Step() override {
    switch (state_) {
      case State::kText:
        return ReadText();
      case State::kSection:
        return ReadSection();
      case State::kHead:
        return ReadHead();
      case State::kFence:
        return ReadFence();
      case State::kArguments:
        return ReadArguments();
    }
    return false;
  }

  void AtEnd(bool complete) override {
    if (state_ == State::kArguments) {
      if (!complete) writer_.Arguments(held_);
      EndArguments(complete);
    } else {
      writer_.Content(raw_);
    }
    writer_.Content(input_.rest());
  }

  bool ReadText() {
    // A section may also end after text that is not a call.
    const PieceBuffer::Found found =
        in_section_ ? input_.Find(section_markers_) : input_.Find(text_markers_);
    writer_.Content(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin);
    if (found.marker.empty()) return false;
    Take(found.marker);
    if (found.marker == format_.section_end) {
      raw_.clear();
      in_section_ = false;
    } else if (found.marker == format_.section_begin) {
      state_ = State::kSection;
    } else {
      state_ = State::kHead;
    }
    return true;
  }

  // Reads what follows the beginning of a section or the end of a call.
  bool ReadSection() {
    const std::string_view text = input_.rest();
    const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    TakeBytes(space);
    if (input_.empty()) return false;
    const PieceBuffer::Match begin = input_.StartsWith(format_.call_begin);
    const PieceBuffer::Match end = input_.StartsWith(format_.section_end);
    if (begin == PieceBuffer::Match::kYes) {
      Take(format_.call_begin);
      state_ = State::kHead;
    } else if (end == PieceBuffer::Match::kYes && in_section_) {
      input_.Consume(format_.section_end.size());
      raw_.clear();
      in_section_ = false;
      state_ = State::kText;
    } else if (begin == PieceBuffer::Match::kPartly || end == PieceBuffer::Match::kPartly) {
      return false;
    } else {
      BeginText();
    }
    return true;
  }

  bool ReadHead() {
    const PieceBuffer::Found found = input_.Find(head_markers_);
    if (found.marker.empty() && found.begin <= kMaxCallName) return false;
    if (found.marker != format_.separator || found.begin > kMaxCallName) return BeginText();
    const std::string head(TrimMarkupSpace(input_.rest().substr(0, found.begin)));
    TakeBytes(found.begin);
    Take(format_.separator);
    if (format_.fenced) {
      state_ = State::kFence;  // `head` is the call's type
      return true;
    }
    if (format_.id_end.empty())
      return BeginCall(format_.id ? NameOfId(head) : head, format_.id ? head : "");
    const size_t end = head.find(format_.id_end);
    if (end == std::string::npos) return BeginText();
    const std::string_view id = std::string_view(head).substr(0, end);
    return BeginCall(std::string_view(head).substr(end + format_.id_end.size()),
                     IsPlausible(id) ? id : "");
  }

  bool ReadFence() {
    const PieceBuffer::Found found = input_.Find(fence_markers_);
    if (found.marker.empty() && found.begin <= kMaxCallName) return false;
    if (found.marker != kFence || found.begin > kMaxCallName) return BeginText();
    const std::string name(TrimMarkupSpace(input_.rest().substr(0, found.begin)));
    TakeBytes(found.begin);
    Take(kFence);
    return BeginCall(name, "");
  }

  bool BeginCall(std::string_view name, std::string_view id) {
    if (name.empty() || !IsPlausible(name)) return BeginText();
    writer_.BeginCall(name, id);
    raw_.clear();
    held_.clear();
    started_ = wrote_ = false;
    in_section_ = true;
    state_ = State::kArguments;
    return true;
  }

  static bool IsPlausible(std::string_view name) {
    return name.find_first_of(" \t\r\n\"{}") == std::string_view::npos;
  }

  bool ReadArguments() {
    const PieceBuffer::Found found = input_.Find(end_markers_);
    WriteArguments(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin);
    if (found.marker.empty()) return false;
    EndArguments(/*complete=*/true);
    if (found.marker == format_.call_end) input_.Consume(format_.call_end.size());
    state_ = State::kSection;
    return true;
  }

  // Holds back text that may belong to the end of the arguments: white space, and the end of the
  // code block.
  void WriteArguments(std::string_view text) {
    if (!started_) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty()) return;
    started_ = true;
    const size_t last = text.find_last_not_of(format_.fenced ? " \t\r\n`" : " \t\r\n");
    if (last == std::string_view::npos) {
      held_ += text;
      return;
    }
    writer_.Arguments(held_);
    writer_.Arguments(text.substr(0, last + 1));
    held_ = text.substr(last + 1);
    wrote_ = true;
  }

  void EndArguments(bool complete) {
    std::string_view rest = TrimEnd(held_);
    if (format_.fenced && rest.ends_with(kFenceEnd)) {
      rest.remove_suffix(kFenceEnd.size());
      rest = TrimEnd(rest);
    }
    if (complete) writer_.Arguments(rest.empty() && !wrote_ ? "{}" : rest);
    writer_.EndCall();
  }

  static std::string_view TrimEnd(std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
  }

  void Take(std::string_view marker) {
    raw_ += marker;
    input_.Consume(marker.size());
  }

  void TakeBytes(size_t bytes) {
    raw_ += input_.rest().substr(0, bytes);
    input_.Consume(bytes);
  }

  // The text is not a call after all: the part that has been read becomes content.
  bool BeginText() {
    writer_.Content(raw_);
    raw_.clear();
    state_ = State::kText;
    return true;
  }

  const NamedFormat format_;
  const std::array<std::string_view, 2> text_markers_;
  const std::array<std::string_view, 3> section_markers_;
  const std::array<std::string_view, 4> head_markers_, fence_markers_;
  const std::array<std::string_view, 3> end_markers_;
  State state_ = State::kText;
  std::string raw_;          // text of the present call that became no event
  std::string held_;         // text held back at the end of the arguments
  bool started_ = false;     // the arguments have text other than white space
  bool wrote_ = false;       // a part of the arguments is written
  bool in_section_ = false;  // a call has begun since the last end of a section
};

constexpr NamedFormat kDeepSeekV31{.section_begin = "<｜tool▁calls▁begin｜>",
                                   .section_end = "<｜tool▁calls▁end｜>",
                                   .call_begin = "<｜tool▁call▁begin｜>",
                                   .separator = "<｜tool▁sep｜>",
                                   .call_end = "<｜tool▁call▁end｜>"};

constexpr NamedFormat DeepSeekV3() {
  NamedFormat format = kDeepSeekV31;
  format.fenced = true;
  return format;
}

constexpr NamedFormat kKimiK2{.section_begin = "<|tool_calls_section_begin|>",
                              .section_end = "<|tool_calls_section_end|>",
                              .call_begin = "<|tool_call_begin|>",
                              .separator = "<|tool_call_argument_begin|>",
                              .call_end = "<|tool_call_end|>",
                              .id = true};

constexpr NamedFormat kSolarOpen{.section_begin = "<|tool_calls|>",
                                 .section_end = "<|calls|>",
                                 .call_begin = "<|tool_call:begin|>",
                                 .separator = "<|tool_call:args|>",
                                 .call_end = "<|tool_call:end|>",
                                 .id_end = "<|tool_call:name|>"};

}  // namespace

std::unique_ptr<CallParser> MakeDeepSeekV3Parser(OutputEvents& out, const OfferedTools&) {
  return std::make_unique<NamedCallParser>(out, DeepSeekV3());
}

std::unique_ptr<CallParser> MakeDeepSeekV31Parser(OutputEvents& out, const OfferedTools&) {
  return std::make_unique<NamedCallParser>(out, kDeepSeekV31);
}

std::unique_ptr<CallParser> MakeKimiK2Parser(OutputEvents& out, const OfferedTools&) {
  return std::make_unique<NamedCallParser>(out, kKimiK2);
}

std::unique_ptr<CallParser> MakeSolarOpenParser(OutputEvents& out, const OfferedTools&) {
  return std::make_unique<NamedCallParser>(out, kSolarOpen);
}

}  // namespace switchyard
