#include "text/output/output_events.h"

#include <algorithm>

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

void PieceBuffer::Append(std::string_view piece) {
  if (at_ > text_.size() / 2) {
    text_.erase(0, at_);
    at_ = 0;
  }
  text_ += piece;
}

void PieceBuffer::Consume(size_t bytes) {
  at_ += bytes;
  searched_ -= std::min(searched_, bytes);
}

void PieceBuffer::ConsumeSpace() {
  const std::string_view text = rest();
  size_t bytes = 0;
  while (bytes < text.size() && IsMarkupSpace(text[bytes])) ++bytes;
  Consume(bytes);
}

PieceBuffer::Found PieceBuffer::Find(std::span<const std::string_view> markers) {
  if (markers.data() != last_) searched_ = 0;
  last_ = markers.data();
  std::string first_bytes;
  for (const std::string_view marker : markers) first_bytes += marker[0];
  const std::string_view text = rest();
  for (size_t at = text.find_first_of(first_bytes, searched_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes, at + 1)) {
    const std::string_view tail = text.substr(at);
    for (const std::string_view marker : markers) {
      if (tail.starts_with(marker)) return {at, marker};
    }
    const bool partly = std::ranges::any_of(
        markers, [tail](std::string_view marker) { return marker.starts_with(tail); });
    if (partly && !ended_) {
      searched_ = at;
      return {at, {}};
    }
  }
  searched_ = text.size();
  return {text.size(), {}};
}

PieceBuffer::Match PieceBuffer::StartsWith(std::string_view marker) const {
  const std::string_view text = rest();
  if (text.starts_with(marker)) return Match::kYes;
  return marker.starts_with(text) && !ended_ ? Match::kPartly : Match::kNo;
}

}  // namespace switchyard
