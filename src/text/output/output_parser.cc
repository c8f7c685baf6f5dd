#include "text/output/output_parser.h"

#include <algorithm>

#include "text/jinja/template.h"

namespace switchyard {
namespace {

constexpr size_t kMaxHeader = 4096;  // bytes

std::string Tail(std::string_view text) {
  return std::string(text.substr(text.size() - std::min(text.size(), kMaxHeader)));
}

}  // namespace

ReasoningSplitter::Start ReasoningStart(const ReasoningFormat& format, const PromptEnd& prompt) {
  using Start = ReasoningSplitter::Start;
  if (!prompt.message.empty()) {
    const std::string text = prompt.header + prompt.message;
    const size_t open = text.rfind(format.open), close = text.rfind(format.close);
    if (open == std::string::npos) return Start::kContent;
    return close == std::string::npos || close < open ? Start::kReasoning : Start::kContent;
  }
  const std::string_view header = TrimMarkupSpace(prompt.header);
  if (header.ends_with(format.open)) return Start::kReasoning;
  if (header.ends_with(format.close)) return Start::kContent;
  return format.always ? Start::kReasoning : Start::kUndecided;
}

PromptEnd EndOf(const jinja::Rendered& prompt, bool continues) {
  PromptEnd end;
  if (prompt.runs.empty()) return end;
  const std::string_view text = prompt.text;
  const auto view = [text](const jinja::Run& run) {
    return text.substr(run.begin, run.end - run.begin);
  };
  const jinja::Run& last = prompt.runs.back();
  if (last.trusted) {
    end.header = Tail(view(last));
  } else if (continues) {
    end.message = view(last);
    if (prompt.runs.size() > 1) end.header = Tail(view(prompt.runs[prompt.runs.size() - 2]));
  }
  return end;
}

PromptEnd EndOf(std::string_view prompt) { return {.header = Tail(prompt), .message = {}}; }

OutputParser::OutputParser(const OutputFormat& format, std::shared_ptr<const OfferedTools> tools,
                           const PromptEnd& prompt)
    : tools_(std::move(tools)) {
  const CallFormat* calls = tools_ ? format.calls : nullptr;
  const bool harmony =
      (calls && calls->IsHarmony()) || (format.reasoning && format.reasoning->IsHarmony());
  if (harmony) {
    harmony_.emplace(events_, calls != nullptr, prompt.header);
    return;
  }
  if (calls) calls_ = calls->make(events_, *tools_);
  if (!format.reasoning) return;
  const ReasoningSplitter::Markers markers{.open = format.reasoning->open,
                                           .close = format.reasoning->close,
                                           .call = calls ? calls->begin : std::string_view(),
                                           .content_open = format.reasoning->content_open,
                                           .content_close = format.reasoning->content_close,
                                           .turn = format.reasoning->turn};
  splitter_.emplace(events_, markers, ReasoningStart(*format.reasoning, prompt));
}

void OutputParser::Push(std::string_view text) {
  if (harmony_) return harmony_->Push(text);
  if (!splitter_) return PushContent(text);
  PushContent(splitter_->Push(text));
}

void OutputParser::PushContent(std::string_view text) {
  if (text.empty()) return;
  calls_ ? calls_->Push(text) : events_.Content(text);
}

void OutputParser::Finish(bool complete) {
  if (harmony_) return harmony_->Finish(complete);
  if (splitter_) PushContent(splitter_->Finish());
  if (calls_) calls_->Finish(complete);
}

bool OutputParser::reasoning() const {
  if (harmony_) return harmony_->reasoning();
  return splitter_ && splitter_->reasoning();
}

}  // namespace switchyard
