#include "route/typed_stream.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace switchyard::route {
namespace {

using Json = nlohmann::ordered_json;

bool IsId(std::string_view key) { return key == "id" || key == "item_id" || key == "call_id"; }

// The type of the event, and the item, block or part that it belongs to.
std::string PlaceOf(const Json& event) {
  std::string place = event.value("type", std::string());
  for (const char* key : {"output_index", "content_index", "summary_index", "index"}) {
    const auto index = event.find(key);
    place += '/';
    if (index != event.end() && index->is_number_integer())
      place += std::to_string(index->get<int64_t>());
  }
  return place;
}

// The new text of an event; null: it has none.
Json* TextOf(Json& event) {
  const auto delta = event.find("delta");
  if (delta == event.end()) return nullptr;
  if (delta->is_string()) return &*delta;
  if (!delta->is_object()) return nullptr;
  for (const char* key : {"text", "thinking", "partial_json", "signature"})
    if (const auto text = delta->find(key); text != delta->end() && text->is_string())
      return &*text;
  return nullptr;
}

}  // namespace

bool TypedStream::IsLast(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kLast = {
      "message_stop", "error", "response.completed", "response.incomplete", "response.failed"};
  return std::ranges::find(kLast, name) != kLast.end();
}

bool TypedStream::Trim(Json& event) {
  const std::string place = PlaceOf(event);
  if (Json* const text = TextOf(event)) {
    if (!TrimText(place, *text)) return false;
  } else {
    const auto [sent, first] = once_.try_emplace(place, event);
    if (!first) {
      CompareIds(sent->second, event);
      return false;
    }
  }
  SetIds(event);
  if (const auto once = once_.find(place); once != once_.end()) once->second = event;
  if (const auto number = event.find("sequence_number"); number != event.end())
    *number = sequence_++;
  const auto response = event.find("response");
  if (response != event.end() && response->is_object() && response->contains("created_at")) {
    Json& created = (*response)["created_at"];
    if (created_.is_null()) created_ = created;
    created = created_;
  }
  return true;
}

bool TypedStream::TrimText(const std::string& place, Json& text) {
  auto& value = text.get_ref<std::string&>();
  size_t& passed = passed_[place];
  size_t& sent = sent_[place];
  const size_t had = sent > passed ? std::min(sent - passed, value.size()) : 0;
  passed += value.size();
  sent = std::max(sent, passed);
  value.erase(0, had);
  return !value.empty();
}

void TypedStream::Restart() {
  passed_.clear();
  ids_.clear();
}

void TypedStream::CompareIds(const Json& sent, const Json& now) {
  if (now.is_object() && sent.is_object()) {
    for (const auto& [key, value] : now.items()) {
      const auto old = sent.find(key);
      if (old == sent.end()) continue;
      if (IsId(key) && value.is_string() && old->is_string()) {
        ids_[value.get<std::string>()] = old->get<std::string>();
      } else {
        CompareIds(*old, value);
      }
    }
  } else if (now.is_array() && sent.is_array()) {
    for (size_t i = 0; i < std::min(now.size(), sent.size()); ++i) CompareIds(sent[i], now[i]);
  }
}

void TypedStream::SetIds(Json& value) const {
  if (value.is_object()) {
    for (auto& [key, member] : value.items()) {
      if (IsId(key) && member.is_string()) {
        if (const auto id = ids_.find(member.get<std::string>()); id != ids_.end())
          member = id->second;
      } else {
        SetIds(member);
      }
    }
  } else if (value.is_array()) {
    for (Json& member : value) SetIds(member);
  }
}

}  // namespace switchyard::route
