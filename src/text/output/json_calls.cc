#include "text/output/json_calls.h"

#include <nlohmann/json.hpp>

#include "text/output/call_parser.h"

namespace switchyard {
namespace {

// Decodes the bytes between the quotes of a JSON string; empty if they are malformed.
std::string Unquoted(const std::string& raw) {
  const auto json = nlohmann::json::parse('"' + raw + '"', nullptr, /*allow_exceptions=*/false);
  return json.is_string() ? json.get<std::string>() : std::string();
}

bool IsOpening(char c) { return c == '{' || c == '['; }
bool IsClosing(char c) { return c == '}' || c == ']'; }

}  // namespace

JsonValueEnd::Place JsonValueEnd::Push(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 0) return Place::kLast;
    }
    return Place::kInside;
  }
  if (c == '"') {
    if (started_ && depth_ == 0) return Place::kAfter;
    in_string_ = started_ = true;
    return Place::kInside;
  }
  if (IsOpening(c)) {
    if (started_ && depth_ == 0) return Place::kAfter;
    started_ = true;
    ++depth_;
    return Place::kInside;
  }
  if (depth_ > 0) {
    if (IsClosing(c) && --depth_ == 0) return Place::kLast;
    return Place::kInside;
  }
  if (IsClosing(c) || c == ',' || c == ';' || c == '<' || IsMarkupSpace(c)) return Place::kAfter;
  started_ = true;
  return Place::kInside;
}

JsonCallReader::Status JsonCallReader::Push(std::string_view text, size_t* used) {
  for (*used = 0; *used < text.size(); ++*used) {
    const char c = text[*used];
    bool kept = false;
    Step step = Step::kAgain;
    while (step == Step::kAgain) {
      if (!kept && IsKept()) raw_ += c;
      kept = kept || IsKept();
      step = Read(c);
    }
    if (step != Step::kNext) {
      if (kept) raw_.pop_back();
      return step == Step::kMalformed || calls_ == 0 ? Status::kMalformed : Status::kEnd;
    }
    const bool too_long = raw_.size() > kMaxCallHead && static_cast<unsigned char>(c) < 0x80;
    if (IsStopped() || too_long) {
      ++*used;
      return Malformed() == Step::kEnd ? Status::kEnd : Status::kMalformed;
    }
  }
  Flush();
  return Status::kMore;
}

bool JsonCallReader::IsStopped() const {
  // The stop marker counts only in a call's head. Arguments and skipped values may contain its
  // text.
  const bool in_head = !begun_ && state_ != State::kBetween && state_ != State::kArguments &&
                       state_ != State::kDecoded && state_ != State::kSkipped;
  return in_head && !options_.stop.empty() && raw_.ends_with(options_.stop);
}

JsonCallReader::Status JsonCallReader::Finish() {
  if (begun_) {
    if (state_ == State::kDecoded) {
      std::string rest;
      decoder_.Finish(&rest);
      Write(rest);
    }
    if (!has_arguments_) EndArguments();
    EndCall();
    raw_.clear();
    return Status::kEnd;
  }
  const bool between = state_ == State::kBetween && calls_ > 0;
  return between ? Status::kEnd : Status::kMalformed;
}

JsonCallReader::Step JsonCallReader::Read(char c) {
  switch (state_) {
    case State::kBetween:
      return ReadBetween(c);
    case State::kKey:
      return ReadKey(c);
    case State::kKeyText:
      return ReadText(c, &key_, State::kColon);
    case State::kColon:
      if (IsMarkupSpace(c)) return Step::kNext;
      if (c != ':') return Malformed();
      state_ = State::kValue;
      return Step::kNext;
    case State::kValue:
      return IsMarkupSpace(c) ? Step::kNext : BeginValue(c);
    case State::kName:
      return ReadText(c, &name_, State::kComma);
    case State::kId:
      return ReadText(c, &id_, State::kComma);
    case State::kArguments:
    case State::kDecoded:
      return ReadArguments(c);
    case State::kSkipped: {
      const JsonValueEnd::Place place = value_.Push(c);
      if (place != JsonValueEnd::Place::kInside) state_ = State::kComma;
      return place == JsonValueEnd::Place::kAfter ? Step::kAgain : Step::kNext;
    }
    case State::kComma:
      if (IsMarkupSpace(c)) return Step::kNext;
      if (c == '}') return EndObject();
      if (c != ',') return Malformed();
      state_ = State::kKey;
      return Step::kNext;
  }
  return Step::kMalformed;
}

JsonCallReader::Step JsonCallReader::ReadBetween(char c) {
  if (list_ended_) return Step::kEnd;
  if (IsMarkupSpace(c)) return Step::kNext;
  if (c == '{') {
    state_ = State::kKey;
    return Step::kNext;
  }
  if (c == '[' && !list_ && calls_ == 0) {
    list_ = true;
    return Step::kNext;
  }
  if (c == ']' && list_ && calls_ > 0) {
    list_ended_ = true;
    raw_.clear();
    return Step::kNext;
  }
  return (c == ',' || c == ';') && calls_ > 0 ? Step::kNext : Step::kEnd;
}

JsonCallReader::Step JsonCallReader::ReadKey(char c) {
  if (IsMarkupSpace(c)) return Step::kNext;
  if (c == '}') return EndObject();  // a trailing comma is accepted
  if (c != '"') return Malformed();
  key_.clear();
  state_ = State::kKeyText;
  return Step::kNext;
}

JsonCallReader::Step JsonCallReader::BeginValue(char c) {
  if (std::string_view(",;:}]<").find(c) != std::string_view::npos) return Malformed();
  value_ = {};
  const bool is_arguments = (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
  if (key_ == "name" && !has_name_) {
    if (c != '"') return Malformed();
    has_name_ = true;
    state_ = State::kName;
    return Step::kNext;
  }
  if (key_ == "id" && id_.empty() && c == '"') {
    state_ = State::kId;
    return Step::kNext;
  }
  if (!is_arguments) {
    state_ = State::kSkipped;
    return Step::kAgain;
  }
  if (has_name_ && !Begin()) return Step::kMalformed;
  state_ = c == '"' ? State::kDecoded : State::kArguments;
  return c == '"' ? Step::kNext : Step::kAgain;
}

JsonCallReader::Step JsonCallReader::ReadArguments(char c) {
  if (state_ == State::kDecoded) {
    std::string text;
    const bool last = c == '"' && !decoder_.InEscape();
    last ? decoder_.Finish(&text) : decoder_.Push(c, &text);
    Write(text);
    if (last) EndArguments();
    return Step::kNext;
  }
  const JsonValueEnd::Place place = value_.Push(c);
  if (place == JsonValueEnd::Place::kAfter) {
    EndArguments();
    return Step::kAgain;
  }
  if (!scalar_.empty() || (!wrote_ && !IsOpening(c))) {
    scalar_ += c;
  } else {
    Write({&c, 1});
  }
  if (place == JsonValueEnd::Place::kLast) EndArguments();
  return Step::kNext;
}

JsonCallReader::Step JsonCallReader::ReadText(char c, std::string* text, State next) {
  if (c == '"' && !escaped_) {
    state_ = next;
    return Step::kNext;
  }
  escaped_ = c == '\\' && !escaped_;
  *text += c;
  return Step::kNext;
}

void JsonCallReader::EndArguments() {
  if (scalar_ != "null") Write(scalar_);
  if (!wrote_) Write("{}");
  has_arguments_ = true;
  state_ = State::kComma;
}

JsonCallReader::Step JsonCallReader::EndObject() {
  if (!begun_ && (!has_name_ || !Begin())) return Step::kMalformed;
  if (!has_arguments_) EndArguments();
  EndCall();
  raw_.clear();
  return Step::kNext;
}

JsonCallReader::Step JsonCallReader::Malformed() {
  if (!begun_) return Step::kMalformed;
  EndCall();
  return Step::kEnd;
}

void JsonCallReader::EndCall() {
  Flush();
  writer_.EndCall();
  ++calls_;
  begun_ = has_name_ = has_arguments_ = wrote_ = false;
  key_.clear();
  name_.clear();
  id_.clear();
  early_.clear();
  scalar_.clear();
  decoder_ = EscapeDecoder(EscapeDecoder::Language::kJson);
  state_ = State::kBetween;
}

bool JsonCallReader::Begin() {
  const std::string name = Unquoted(name_);
  if (name.empty() || name.size() > kMaxCallName) return false;
  if (options_.offered_only && !tools_.Has(name)) return false;
  writer_.BeginCall(name, Unquoted(id_));
  begun_ = true;
  raw_.clear();
  pending_ = std::exchange(early_, {});
  return true;
}

void JsonCallReader::Write(std::string_view arguments) {
  (begun_ ? pending_ : early_) += arguments;
  wrote_ = wrote_ || !arguments.empty();
}

void JsonCallReader::Flush() {
  if (begun_) writer_.Arguments(pending_);
  pending_.clear();
}

}  // namespace switchyard
