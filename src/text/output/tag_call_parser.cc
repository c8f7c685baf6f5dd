// Formats that write each parameter between tags, as plain text: Qwen3-Coder, MiniMax-M2, GLM-4.5,
// DeepSeek-V3.2 and V4.
// The arguments are converted to a JSON object by the types of the tool's schema.
#include <optional>
#include <string>
#include <vector>

#include "text/output/call_parser.h"

namespace switchyard {
namespace {

struct TagFormat {
  std::string_view section_begin, section_end;  // around calls; empty: none
  std::string_view call_begin, call_end;
  std::string_view name_end;                // empty: a name ends at a newline or a tag
  std::string_view key_begin, key_end;      // around a parameter's name
  std::string_view value_begin, value_end;  // around a parameter's value; begin may be empty
  bool quoted = false;                      // names of functions and parameters may be in quotes
  bool own_lines = false;                   // a newline next to a value belongs to the tags
  bool bare_calls = false;                  // call_begin begins a call outside a section too
  // string="true" or string="false" follows a parameter's name. Other values are JSON.
  bool marks_strings = false;
};

constexpr TagFormat kQwen3Coder{.section_begin = "<tool_call>",
                                .section_end = "</tool_call>",
                                .call_begin = "<function=",
                                .call_end = "</function>",
                                .name_end = ">",
                                .key_begin = "<parameter=",
                                .key_end = ">",
                                .value_begin = "",
                                .value_end = "</parameter>",
                                .own_lines = true,
                                .bare_calls = true};

constexpr TagFormat kMinimaxM2{.section_begin = "<minimax:tool_call>",
                               .section_end = "</minimax:tool_call>",
                               .call_begin = "<invoke name=",
                               .call_end = "</invoke>",
                               .name_end = ">",
                               .key_begin = "<parameter name=",
                               .key_end = ">",
                               .value_begin = "",
                               .value_end = "</parameter>",
                               .quoted = true,
                               .own_lines = true};

constexpr TagFormat kGlm45{.section_begin = "",
                           .section_end = "",
                           .call_begin = "<tool_call>",
                           .call_end = "</tool_call>",
                           .name_end = "",
                           .key_begin = "<arg_key>",
                           .key_end = "</arg_key>",
                           .value_begin = "<arg_value>",
                           .value_end = "</arg_value>",
                           .bare_calls = true};

// DSML of DeepSeek-V3.2 and V4, which differ in the tags around calls.
constexpr TagFormat Dsml(std::string_view section_begin, std::string_view section_end) {
  return {.section_begin = section_begin,
          .section_end = section_end,
          .call_begin = "<｜DSML｜invoke name=",
          .call_end = "</｜DSML｜invoke>",
          .name_end = ">",
          .key_begin = "<｜DSML｜parameter name=",
          .key_end = ">",
          .value_begin = "",
          .value_end = "</｜DSML｜parameter>",
          .quoted = true,
          .marks_strings = true};
}
constexpr TagFormat kDeepSeekV32 = Dsml("<｜DSML｜function_calls>", "</｜DSML｜function_calls>");
constexpr TagFormat kDeepSeekV4 = Dsml("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>");

constexpr JsonTypes kNoString =
    kJsonInteger | kJsonNumber | kJsonBoolean | kJsonObject | kJsonArray | kJsonNull;

// Removes the mark of TagFormat::marks_strings from the end of a parameter's head. Returns its
// value; nullopt: there is none.
std::optional<bool> TakeStringMark(std::string_view* head) {
  constexpr std::string_view kTrue = "string=\"true\"", kFalse = "string=\"false\"";
  const std::string_view trimmed = TrimMarkupSpace(*head);
  for (const std::string_view mark : {kTrue, kFalse}) {
    if (!trimmed.ends_with(mark)) continue;
    *head = trimmed.substr(0, trimmed.size() - mark.size());
    return mark == kTrue;
  }
  return std::nullopt;
}

std::string_view Unquote(std::string_view name) {
  name = TrimMarkupSpace(name);
  if (name.size() < 2 || name.front() != name.back()) return name;
  const bool quoted = name.front() == '"' || name.front() == '\'';
  return quoted ? name.substr(1, name.size() - 2) : name;
}

class TagCallParser : public CallParser {
 public:
  TagCallParser(OutputEvents& out, const OfferedTools& tools, const TagFormat& format)
      : CallParser(out), tools_(tools), f_(format) {
    if (!f_.section_begin.empty()) text_markers_.push_back(f_.section_begin);
    if (f_.bare_calls) text_markers_.push_back(f_.call_begin);
    name_ends_ = f_.name_end.empty()
                     ? std::vector<std::string_view>{"\n", f_.key_begin, f_.call_end}
                     : std::vector<std::string_view>{f_.name_end, "<"};
    key_ends_ = {f_.key_end};
    value_ends_ = {f_.value_end};
    // Some models omit value_end before the next tag.
    if (f_.own_lines) {
      line_before_key_ = "\n" + std::string(f_.key_begin);
      line_before_end_ = "\n" + std::string(f_.call_end);
      value_ends_.insert(value_ends_.end(), {line_before_key_, line_before_end_});
    }
  }

 private:
  enum class State { kText, kSection, kName, kParameters, kKey, kBeforeValue, kValue };

  bool Step() override {
    switch (state_) {
      case State::kText:
        return ReadText();
      case State::kSection:
        return ReadSection();
      case State::kName:
        return ReadName();
      case State::kParameters:
        return ReadParameters();
      case State::kKey:
        return ReadKey();
      case State::kBeforeValue:
        return ReadBeforeValue();
      case State::kValue:
        return ReadValue();
    }
    return false;
  }

  void AtEnd(bool complete) override {
    if (state_ == State::kValue && !IsStreamed()) {
      // A value such as a number is not written if a limit has truncated it.
      if (complete) writer_.Arguments(ParameterJson(value_, types_));
    } else if (state_ == State::kValue) {
      writer_.Arguments(EscapeJson(held_));
      if (complete) writer_.Arguments("\"");
    } else if (state_ == State::kBeforeValue && complete) {
      writer_.Arguments("\"\"");
    }
    const bool in_call = state_ == State::kParameters || state_ == State::kKey ||
                         state_ == State::kBeforeValue || state_ == State::kValue;
    if (!in_call) {
      writer_.Content(raw_);
      writer_.Content(input_.rest());
      return;
    }
    if (complete) writer_.Arguments(parameters_ == 0 ? "{}" : "}");
    writer_.EndCall();
  }

  bool ReadText() {
    const PieceBuffer::Found found = input_.Find(text_markers_);
    writer_.Content(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin);
    if (found.marker.empty()) return false;
    Take(found.marker);
    state_ = found.marker == f_.section_begin ? State::kSection : State::kName;
    return true;
  }

  // Reads what follows the beginning of a section or the end of a call.
  bool ReadSection() {
    TakeSpace();
    if (input_.empty()) return false;
    const PieceBuffer::Match begin = input_.StartsWith(f_.call_begin);
    const PieceBuffer::Match end =
        f_.section_end.empty() ? PieceBuffer::Match::kNo : input_.StartsWith(f_.section_end);
    if (begin == PieceBuffer::Match::kYes) {
      Take(f_.call_begin);
      state_ = State::kName;
    } else if (end == PieceBuffer::Match::kYes && after_call_) {
      input_.Consume(f_.section_end.size());
      raw_.clear();
      after_call_ = false;
      state_ = State::kText;
    } else if (begin == PieceBuffer::Match::kPartly || end == PieceBuffer::Match::kPartly) {
      return false;
    } else {
      return BeginText();
    }
    return true;
  }

  bool ReadName() {
    // Some templates have a newline before the name.
    if (f_.name_end.empty()) TakeSpace();
    const PieceBuffer::Found found = input_.Find(name_ends_);
    const bool named = found.marker != "<" && found.begin <= kMaxCallName;
    if (found.marker.empty() && named) return false;
    name_ = Name(input_.rest().substr(0, found.begin));
    if (!named || name_.empty() || name_.find_first_of(" \t\r\n\"{}") != std::string::npos)
      return BeginText();
    input_.Consume(found.begin);
    if (!f_.name_end.empty()) input_.Consume(f_.name_end.size());
    writer_.BeginCall(name_);
    raw_.clear();
    parameters_ = 0;
    after_call_ = true;
    state_ = State::kParameters;
    return true;
  }

  std::string Name(std::string_view text) const {
    return std::string(f_.quoted ? Unquote(text) : TrimMarkupSpace(text));
  }

  // Reads the text between parameters. Other text or the end of the section ends the call.
  bool ReadParameters() {
    input_.ConsumeSpace();
    if (input_.empty()) return false;
    const PieceBuffer::Match key = input_.StartsWith(f_.key_begin);
    const PieceBuffer::Match end = input_.StartsWith(f_.call_end);
    if (key == PieceBuffer::Match::kYes) {
      input_.Consume(f_.key_begin.size());
      state_ = State::kKey;
    } else if (end == PieceBuffer::Match::kYes) {
      input_.Consume(f_.call_end.size());
      EndCall();
    } else if (key == PieceBuffer::Match::kPartly || end == PieceBuffer::Match::kPartly) {
      return false;
    } else {
      EndCall();
    }
    return true;
  }

  void EndCall() {
    writer_.Arguments(parameters_ == 0 ? "{}" : "}");
    writer_.EndCall();
    state_ = State::kSection;
  }

  bool ReadKey() {
    const PieceBuffer::Found found = input_.Find(key_ends_);
    if (found.marker.empty() && found.begin <= kMaxCallName) return false;
    if (found.begin > kMaxCallName) {  // not a parameter
      EndCall();
      writer_.Content(f_.key_begin);
      return true;
    }
    std::string_view head = input_.rest().substr(0, found.begin);
    const std::optional<bool> string = f_.marks_strings ? TakeStringMark(&head) : std::nullopt;
    const std::string key = Name(head);
    input_.Consume(found.begin + found.marker.size());
    types_ = tools_.TypesOf(name_, key);
    if (string) types_ = *string ? kJsonString : kNoString;
    writer_.Arguments((parameters_++ == 0 ? "{\"" : ", \"") + EscapeJson(key) + "\": ");
    state_ = State::kBeforeValue;
    return true;
  }

  bool ReadBeforeValue() {
    if (!f_.value_begin.empty()) {
      input_.ConsumeSpace();
      const PieceBuffer::Match match = input_.StartsWith(f_.value_begin);
      if (match == PieceBuffer::Match::kPartly) return false;
      if (match == PieceBuffer::Match::kYes) input_.Consume(f_.value_begin.size());
    } else if (f_.own_lines) {
      if (input_.empty()) return false;
      if (input_.rest()[0] == '\n') input_.Consume(1);
    }
    value_.clear();
    held_.clear();
    if (IsStreamed()) writer_.Arguments("\"");
    state_ = State::kValue;
    return true;
  }

  bool IsStreamed() const { return types_ == kJsonString; }

  bool ReadValue() {
    const PieceBuffer::Found found = input_.Find(value_ends_);
    WriteValue(input_.rest().substr(0, found.begin));
    input_.Consume(found.begin);
    if (found.marker.empty()) return false;
    if (found.marker == f_.value_end) input_.Consume(f_.value_end.size());
    if (IsStreamed()) {
      writer_.Arguments("\"");  // a held-back newline is not part of the value
    } else {
      writer_.Arguments(ParameterJson(value_, types_));
    }
    state_ = State::kParameters;
    return true;
  }

  // Writes a string while it arrives, but holds back a newline, which may belong to the tag.
  void WriteValue(std::string_view text) {
    if (text.empty()) return;
    const bool line = f_.own_lines && text.back() == '\n';
    const std::string_view body = text.substr(0, text.size() - (line ? 1 : 0));
    if (IsStreamed()) {
      writer_.Arguments(EscapeJson(held_));
      writer_.Arguments(EscapeJson(body));
    } else {
      value_ += held_;
      value_ += body;
    }
    held_ = line ? "\n" : "";
  }

  void Take(std::string_view marker) {
    raw_ += marker;
    input_.Consume(marker.size());
  }

  void TakeSpace() {
    const std::string_view text = input_.rest();
    Take(text.substr(0, std::min(text.find_first_not_of(" \t\r\n"), text.size())));
  }

  // The text is not a call after all: the part that has been read becomes content.
  bool BeginText() {
    writer_.Content(raw_);
    raw_.clear();
    after_call_ = false;
    state_ = State::kText;
    return true;
  }

  const OfferedTools& tools_;
  const TagFormat f_;
  std::vector<std::string_view> text_markers_, name_ends_, key_ends_, value_ends_;
  std::string line_before_key_, line_before_end_;
  State state_ = State::kText;
  std::string raw_;   // text of the present call that became no event
  std::string name_;  // name of the present call
  int parameters_ = 0;
  JsonTypes types_ = 0;
  std::string value_;        // value of the present parameter, unless it is written on arrival
  std::string held_;         // newline at the end of the value so far, held back
  bool after_call_ = false;  // a call has begun since the last text
};

}  // namespace

std::unique_ptr<CallParser> MakeQwen3CoderParser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<TagCallParser>(out, tools, kQwen3Coder);
}

std::unique_ptr<CallParser> MakeMinimaxM2Parser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<TagCallParser>(out, tools, kMinimaxM2);
}

std::unique_ptr<CallParser> MakeDeepSeekV32Parser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<TagCallParser>(out, tools, kDeepSeekV32);
}

std::unique_ptr<CallParser> MakeDeepSeekV4Parser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<TagCallParser>(out, tools, kDeepSeekV4);
}

std::unique_ptr<CallParser> MakeGlm45Parser(OutputEvents& out, const OfferedTools& tools) {
  return std::make_unique<TagCallParser>(out, tools, kGlm45);
}

}  // namespace switchyard
