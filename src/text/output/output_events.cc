#include "text/output/output_events.h"

namespace switchyard {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

void OutputEvents::Add(OutputEvent::Kind kind, int32_t call, std::string_view text) {
  if (text.empty()) return;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;
  } else {
    events_.push_back({.kind = kind, .call = call, .text = std::string(text), .call_id = {}});
  }
}

void OutputEvents::BeginCall(std::string_view name, std::string_view id) {
  events_.push_back({.kind = OutputEvent::Kind::kCallBegin,
                     .call = calls_++,
                     .text = std::string(name),
                     .call_id = std::string(id)});
}

void OutputEvents::EndCall() {
  events_.push_back(
      {.kind = OutputEvent::Kind::kCallEnd, .call = calls_ - 1, .text = {}, .call_id = {}});
}

void CallWriter::Content(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos) {
    space_ += text;
    return;
  }
  out_.Content(space_);
  out_.Content(text.substr(0, last + 1));
  space_ = text.substr(last + 1);
  after_call_ = false;
}

void CallWriter::BeginCall(std::string_view name, std::string_view id) {
  space_.clear();
  after_call_ = true;
  out_.BeginCall(name, id);
}

void CallWriter::Finish() {
  if (!after_call_) out_.Content(space_);
  space_.clear();
}

bool IsMarkupSpace(char c) { return kSpace.find(c) != std::string_view::npos; }

std::string_view TrimMarkupSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(kSpace) == std::string_view::npos;
}

}  // namespace switchyard
