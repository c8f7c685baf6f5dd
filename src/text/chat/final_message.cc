#include "text/chat/final_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "text/jinja/utf8.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

std::string* TextOfContent(Json* content) {
  if (content->is_string()) return content->get_ptr<std::string*>();
  if (!content->is_array()) return nullptr;
  for (auto part = content->rbegin(); part != content->rend(); ++part) {
    if (part->is_string()) return part->get_ptr<std::string*>();
    if (part->is_object() && part->contains("text") && (*part)["text"].is_string())
      return (*part)["text"].get_ptr<std::string*>();
  }
  return nullptr;
}

// Removes bytes [begin, end) from the text and its runs.
void Erase(size_t begin, size_t end, jinja::Rendered* rendered) {
  rendered->text.erase(begin, end - begin);
  const auto shift = [&](size_t at) {
    return at >= end ? at - (end - begin) : std::min(at, begin);
  };
  std::vector<jinja::Run> runs;
  for (const jinja::Run& run : rendered->runs) {
    const jinja::Run kept{shift(run.begin), shift(run.end), run.trusted};
    if (kept.begin == kept.end) continue;
    if (!runs.empty() && runs.back().trusted == kept.trusted) {
      runs.back().end = kept.end;
    } else {
      runs.push_back(kept);
    }
  }
  rendered->runs = std::move(runs);
}

}  // namespace

FinalMessageMark::FinalMessageMark(const Json& surroundings, std::string_view template_source,
                                   Json* messages) {
  const auto content = messages->back().find("content");
  std::string* text = content == messages->back().end() ? nullptr : TextOfContent(&*content);
  if (text == nullptr)
    throw Invalid("continue_final_message: the last message has no text to continue");
  const std::string all = messages->dump(-1, ' ', false, Json::error_handler_t::replace) +
                          surroundings.dump(-1, ' ', false, Json::error_handler_t::replace);
  // The marker consists of digits, because filters for case or escaping do not change digits.
  for (int i = 0; mark_.empty() || all.find(mark_) != std::string::npos ||
                  template_source.find(mark_) != std::string_view::npos;
       ++i) {
    mark_ = fmt::format("7391508264{}", i);
  }
  *text += mark_ + ' ';
}

void FinalMessageMark::Cut(jinja::Rendered* rendered) const {
  const size_t at = rendered->text.rfind(mark_);
  if (at == std::string::npos) {
    throw Invalid(
        "continue_final_message: the chat template does not print the last message's content "
        "unchanged");
  }
  const bool trims = rendered->text.compare(at + mark_.size(), 1, " ") != 0;
  const size_t end = trims ? jinja::TrimmedEnd(std::string_view(rendered->text).substr(0, at)) : at;
  Erase(end, rendered->text.size(), rendered);
  for (size_t other = rendered->text.find(mark_); other != std::string::npos;
       other = rendered->text.find(mark_)) {
    const size_t after = other + mark_.size();
    Erase(other, after + (rendered->text.compare(after, 1, " ") == 0 ? 1 : 0), rendered);
  }
}

}  // namespace switchyard
