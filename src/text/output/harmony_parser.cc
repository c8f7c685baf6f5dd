#include "text/output/harmony_parser.h"

#include <algorithm>
#include <array>

namespace switchyard {
namespace {

constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kConstrain = "<|constrain|>", kEnd = "<|end|>", kCall = "<|call|>",
                           kReturn = "<|return|>";
constexpr std::array kBodyEnds{kEnd, kCall, kReturn, kStart, kChannel};
constexpr std::array kHeaderEnds{kMessage, kEnd, kCall, kReturn};
constexpr std::array kHeaderBegins{kStart, kChannel, kMessage, kConstrain};
constexpr std::array kStarts{kStart, kChannel};

constexpr size_t kMaxHeader = 1024;  // bytes

// The word that follows `before` in a header; empty if there is none.
std::string_view WordAfter(std::string_view header, std::string_view before) {
  const size_t at = header.find(before);
  if (at == std::string_view::npos) return {};
  std::string_view rest = header.substr(at + before.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

// The recipient of a message, without the prefix "functions.". Empty if the header names none, or
// names a participant of the conversation (assistant, user, all).
std::string_view RecipientOf(std::string_view header) {
  constexpr std::string_view kFunctions = "functions.";
  std::string_view recipient = WordAfter(header, "to=");
  if (recipient == "assistant" || recipient == "user" || recipient == "all") return {};
  if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
  return recipient;
}

}  // namespace

HarmonyParser::HarmonyParser(OutputEvents& out, bool tools, std::string_view prompt)
    : out_(out), tools_(tools) {
  const size_t start = prompt.rfind(kStart);
  if (start == std::string_view::npos) return;
  const std::string_view message = prompt.substr(start + kStart.size());
  const size_t body = message.find(kMessage);
  const bool ended = std::ranges::any_of(kBodyEnds, [message](std::string_view end) {
    return end != kChannel && message.find(end) != std::string_view::npos;
  });
  if (!message.starts_with("assistant") || ended) return;
  if (TrimMarkupSpace(message) == "assistant") return;
  if (body == std::string_view::npos) {
    input_.Append(message);
    state_ = State::kHeader;
  } else {
    BeginMessage(message.substr(0, body));
    state_ = State::kBody;
  }
}

void HarmonyParser::Push(std::string_view text) {
  input_.Append(text);
  while (Step()) {
  }
}

void HarmonyParser::Finish(bool complete) {
  input_.End();
  while (Step()) {
  }
  if (state_ == State::kBody) EndMessage(complete);
}

bool HarmonyParser::Step() {
  switch (state_) {
    case State::kStart:
      return ReadStart();
    case State::kHeader:
      return ReadHeader();
    case State::kBody:
      return ReadBody();
    case State::kBetween:
      return ReadBetween();
  }
  return false;
}

// The prompt ends with the role, so an output begins with a channel or a recipient. Other text is a
// message without header.
bool HarmonyParser::ReadStart() {
  const std::string_view text = input_.rest();
  const size_t space = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view word = text.substr(space);
  bool header = word.starts_with("to="), partly = std::string_view("to=").starts_with(word);
  for (const std::string_view marker : kHeaderBegins) {
    header = header || word.starts_with(marker);
    partly = partly || marker.starts_with(word);
  }
  if (!header && partly && !input_.ended()) return false;
  state_ = header ? State::kHeader : State::kBody;
  return true;
}

bool HarmonyParser::ReadHeader() {
  const PieceBuffer::Found found = input_.Find(kHeaderEnds);
  if (found.begin > kMaxHeader) {  // too long for a header
    const std::string_view text = input_.rest();
    size_t bytes = kMaxHeader;
    while ((text[bytes] & 0xC0) == 0x80) --bytes;  // do not split a character
    target_ = Target::kContent;
    Write(text.substr(0, bytes));
    input_.Consume(bytes);
    state_ = State::kBody;
    return true;
  }
  if (found.marker.empty()) return false;
  if (found.marker == kMessage) {
    BeginMessage(input_.rest().substr(0, found.begin));
    state_ = State::kBody;
  } else {
    state_ = State::kBetween;
  }
  input_.Consume(found.begin + found.marker.size());
  return true;
}

void HarmonyParser::BeginMessage(std::string_view header) {
  const std::string_view recipient = RecipientOf(header);
  first_ = true;
  held_.clear();
  if (!recipient.empty() && tools_) {
    target_ = Target::kCall;
    out_.BeginCall(recipient, {});
    return;
  }
  target_ = WordAfter(header, kChannel) == "analysis" ? Target::kReasoning : Target::kContent;
}

bool HarmonyParser::ReadBody() {
  const PieceBuffer::Found found = input_.Find(kBodyEnds);
  Write(input_.rest().substr(0, found.begin));
  input_.Consume(found.begin);
  if (found.marker.empty()) return false;
  EndMessage(/*complete=*/true);
  const bool next = found.marker == kStart || found.marker == kChannel;
  if (!next) input_.Consume(found.marker.size());
  state_ = next ? State::kHeader : State::kBetween;
  return true;
}

// Text between messages is content, except for white space.
bool HarmonyParser::ReadBetween() {
  const PieceBuffer::Found found = input_.Find(kStarts);
  const std::string_view text = input_.rest().substr(0, found.begin);
  if (!IsBlank(text)) {
    target_ = Target::kContent;
    first_ = true;
    state_ = State::kBody;
    return true;
  }
  if (found.marker.empty()) return false;
  input_.Consume(found.begin);
  state_ = State::kHeader;
  return true;
}

void HarmonyParser::Write(std::string_view text) {
  if (text.empty()) return;
  if (target_ == Target::kCall) {
    if (first_) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    const size_t last = text.find_last_not_of(" \t\r\n");
    if (last == std::string_view::npos) {
      held_ += text;
      return;
    }
    out_.Arguments(held_);
    out_.Arguments(text.substr(0, last + 1));
    held_ = text.substr(last + 1);
    first_ = false;
    return;
  }
  const bool reasoning = target_ == Target::kReasoning;
  bool& has_text = reasoning ? has_reasoning_ : has_content_;
  const std::string_view joint = first_ && has_text ? "\n" : "";
  reasoning ? out_.Reasoning(joint) : out_.Content(joint);
  reasoning ? out_.Reasoning(text) : out_.Content(text);
  has_text = true;
  first_ = false;
}

void HarmonyParser::EndMessage(bool complete) {
  if (target_ != Target::kCall) return;
  if (first_ && complete) out_.Arguments("{}");
  if (!complete) out_.Arguments(held_);
  out_.EndCall();
  target_ = Target::kContent;
}

}  // namespace switchyard
