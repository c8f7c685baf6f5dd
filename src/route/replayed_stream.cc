#include "route/replayed_stream.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace switchyard::route {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDone = "[DONE]";

// The number after `"name":` in JSON text. The quotes of a name inside of a string are escaped, so
// the first occurrence is a key.
std::optional<int64_t> NumberOf(std::string_view name, std::string_view text) {
  const std::string key = '"' + std::string(name) + "\":";
  size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at += key.size();
  if (at < text.size() && text[at] == ' ') ++at;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

bool IsNull(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

}  // namespace

std::vector<EventReader::Event> EventReader::Add(std::string_view bytes) {
  std::vector<Event> events;
  for (const char c : bytes) {
    if (c == '\r') continue;  // workers end lines with LF or CR LF, never with CR alone
    if (c != '\n') {
      line_ += c;
      continue;
    }
    if (line_.empty()) {
      if (has_data_ || !event_.comment.empty()) events.push_back(std::move(event_));
      event_ = {};
      has_data_ = false;
    } else if (line_[0] == ':') {
      event_.comment = line_;
    } else if (line_.starts_with("event:")) {
      event_.name = line_.substr(line_.starts_with("event: ") ? 7 : 6);
    } else if (line_.starts_with("data:")) {
      if (has_data_) event_.data += '\n';
      has_data_ = true;
      event_.data += line_.substr(line_.starts_with("data: ") ? 6 : 5);
    }
    line_.clear();
  }
  return events;
}

std::optional<std::string> ReplayedStream::Next(const std::string& data, std::string_view name) {
  if (data == kDone || (format_ == StreamFormat::kTyped && TypedStream::IsLast(name))) done_ = true;
  if (data == kDone) return data;
  if (format_ == StreamFormat::kTotals) return NextTotal(data);
  if (!replays_) {
    kept_bytes_ += data.size();
    if (kept_bytes_ <= kMaxKept) kept_.push_back(data);
    return data;
  }
  Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return data;
  if (format_ == StreamFormat::kTyped) {
    if (!typed_.Trim(event)) return std::nullopt;
    return event.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  if (!Trim(event)) return std::nullopt;
  if (event.contains("id") && !id_.is_null()) event["id"] = id_;
  if (event.contains("created") && !created_.is_null()) event["created"] = created_;
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::string> ReplayedStream::NextTotal(const std::string& data) {
  const int64_t index = NumberOf("index", data).value_or(0);
  const int64_t tokens = NumberOf("completion_tokens", data).value_or(0);
  const bool ends = data.find(R"("finish_reason":null)") == std::string::npos &&
                    data.find(R"("finish_reason": null)") == std::string::npos;
  const bool news = tokens > totals_[index] || (ends && !ended_.contains(index));
  totals_[index] = std::max(totals_[index], tokens);
  if (ends) ended_.insert(index);
  return news ? std::optional(data) : std::nullopt;
}

bool ReplayedStream::Restart() {
  if (kept_bytes_ > kMaxKept) return false;
  if (!replays_ && format_ != StreamFormat::kTotals) {
    for (const std::string& data : std::exchange(kept_, {})) {
      Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
      if (!event.is_object()) continue;
      if (format_ == StreamFormat::kTyped) {
        typed_.Trim(event);
        continue;
      }
      if (id_.is_null() && event.contains("id")) id_ = event["id"];
      if (created_.is_null() && event.contains("created")) created_ = event["created"];
      Trim(event);
    }
  }
  replays_ = true;
  typed_.Restart();
  for (auto& [index, choice] : choices_) choice.passed.clear();
  return true;
}

size_t ReplayedStream::Pass(const std::string& field, size_t count, Choice& choice) {
  size_t& passed = choice.passed[field];
  size_t& sent = choice.sent[field];
  const size_t had = sent > passed ? std::min(sent - passed, count) : 0;
  passed += count;
  sent = std::max(sent, passed);
  return had;
}

bool ReplayedStream::TrimText(const std::string& field, Json& text, Choice& choice) {
  if (!text.is_string()) return false;
  auto& value = text.get_ref<std::string&>();
  value.erase(0, Pass(field, value.size(), choice));
  return !value.empty();
}

bool ReplayedStream::TrimList(const std::string& field, Json& list, Choice& choice) {
  if (!list.is_array()) return false;
  const auto had = static_cast<std::ptrdiff_t>(Pass(field, list.size(), choice));
  list.erase(list.begin(), list.begin() + had);
  return !list.empty();
}

bool ReplayedStream::TrimChoice(Json& c) {
  Choice& choice = choices_[c.value("index", int64_t{0})];
  const auto once = [&](const std::string& mark) { return choice.marks.insert(mark).second; };
  bool news = false;
  if (c.contains("text")) news |= TrimText("text", c["text"], choice);
  if (!IsNull(c, "delta") && c["delta"].is_object()) {
    Json& delta = c["delta"];
    for (const char* field : {"content", "reasoning_content"})
      if (delta.contains(field)) news |= TrimText(field, delta[field], choice);
    if (!IsNull(delta, "role")) news |= once("role");
    if (!IsNull(delta, "tool_calls") && delta["tool_calls"].is_array()) {
      for (Json& call : delta["tool_calls"]) {
        const std::string number = std::to_string(call.value("index", int64_t{0}));
        if (IsNull(call, "function")) continue;
        Json& function = call["function"];
        if (!IsNull(function, "name")) news |= once("call " + number);
        if (function.contains("arguments"))
          news |= TrimText("arguments " + number, function["arguments"], choice);
      }
    }
  }
  if (!IsNull(c, "logprobs") && c["logprobs"].is_object())
    for (auto& [name, list] : c["logprobs"].items())
      news |= TrimList("logprobs " + name, list, choice);
  if (c.contains("token_ids")) news |= TrimList("token_ids", c["token_ids"], choice);
  if (!IsNull(c, "finish_reason")) news |= once("finish");
  return news;
}

bool ReplayedStream::Trim(Json& event) {
  const bool has_choices =
      event.contains("choices") && event["choices"].is_array() && !event["choices"].empty();
  if (!has_choices) return !std::exchange(usage_sent_, true);
  bool news = false;
  for (Json& choice : event["choices"]) news |= choice.is_object() && TrimChoice(choice);
  return news;
}

}  // namespace switchyard::route
