#include "server/openai/response_items.h"

#include <random>
#include <utility>

namespace switchyard::openai {
namespace {

using EventKind = OutputEvent::Kind;

// The type of an event about the text of an item, such as "response.output_text.delta".
std::string EventOf(const std::string& item_type, const char* what) {
  return "response." + std::string(item_type == "message" ? "output_text" : "reasoning_text") +
         "." + what;
}

}  // namespace

std::string NewItemId(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}_{:016x}{:016x}", prefix, random(), random());
}

void ResponseItems::Add(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case EventKind::kReasoning:
        AddText("reasoning", event.text);
        break;
      case EventKind::kContent:
        AddText("message", event.text);
        break;
      case EventKind::kCallBegin:
        AddCall(event);
        break;
      case EventKind::kArguments:
        items_.back()["arguments"].get_ref<std::string&>() += event.text;
        if (sink_) {
          Json members = Place();
          members["delta"] = event.text;
          Emit("response.function_call_arguments.delta", std::move(members));
        }
        break;
      case EventKind::kCallEnd:
        End("completed");
        break;
    }
  }
}

void ResponseItems::Finish(bool complete) {
  // A complete response must have an item, so an empty output becomes an empty message.
  if (complete && items_.empty()) BeginText("message");
  End(complete ? "completed" : "incomplete");
}

void ResponseItems::AddText(const char* type, const std::string& text) {
  BeginText(type);
  items_.back()["content"][0]["text"].get_ref<std::string&>() += text;
  if (!sink_) return;
  Json members = Place();
  members["content_index"] = 0;
  members["delta"] = text;
  if (open_ == "message") members["logprobs"] = Json::array();
  Emit(EventOf(open_, "delta"), std::move(members));
}

// Begins an item with one part of text, unless an item of this type is open.
void ResponseItems::BeginText(const char* type) {
  if (open_ == type) return;
  End("completed");
  open_ = type;
  const bool message = open_ == "message";
  Json part = message ? Json{{"type", "output_text"}, {"text", ""}}
                      : Json{{"type", "reasoning_text"}, {"text", ""}};
  if (message) part["annotations"] = Json::array();
  Json item = {
      {"id", NewItemId(message ? "msg" : "rs")}, {"type", type}, {"status", "in_progress"}};
  if (message) {
    item["role"] = "assistant";
  } else {
    item["summary"] = Json::array();
  }
  item["content"] = Json::array();
  items_.push_back(item);
  Emit("response.output_item.added", {{"output_index", items_.size() - 1}, {"item", item}});
  items_.back()["content"].push_back(part);
  Json members = Place();
  members["content_index"] = 0;
  members["part"] = std::move(part);
  Emit("response.content_part.added", std::move(members));
}

void ResponseItems::AddCall(const OutputEvent& event) {
  End("completed");
  open_ = "function_call";
  items_.push_back({{"id", NewItemId("fc")},
                    {"type", "function_call"},
                    {"status", "in_progress"},
                    {"call_id", event.call_id},
                    {"name", event.text},
                    {"arguments", ""}});
  Emit("response.output_item.added",
       {{"output_index", items_.size() - 1}, {"item", items_.back()}});
}

void ResponseItems::End(const char* status) {
  if (open_.empty()) return;
  Json& item = items_.back();
  item["status"] = status;
  if (sink_) {
    Json members = Place();
    if (open_ == "function_call") {
      members["name"] = item["name"];
      members["arguments"] = item["arguments"];
      Emit("response.function_call_arguments.done", std::move(members));
    } else {
      members["content_index"] = 0;
      Json done = members;
      done["text"] = item["content"][0]["text"];
      if (open_ == "message") done["logprobs"] = Json::array();
      Emit(EventOf(open_, "done"), std::move(done));
      members["part"] = item["content"][0];
      Emit("response.content_part.done", std::move(members));
    }
    Emit("response.output_item.done", {{"output_index", items_.size() - 1}, {"item", item}});
  }
  open_.clear();
}

Json ResponseItems::Place() const {
  return {{"item_id", items_.back()["id"]}, {"output_index", items_.size() - 1}};
}

void ResponseItems::Emit(const std::string& type, Json members) const {
  if (sink_) sink_(type, std::move(members));
}

Json ResponseItems::Message() const {
  std::string content, reasoning;
  Json calls = Json::array();
  for (const Json& item : items_) {
    if (item["type"] == "function_call") {
      Json function = {{"name", item["name"]}, {"arguments", item["arguments"]}};
      calls.push_back(
          {{"id", item["call_id"]}, {"type", "function"}, {"function", std::move(function)}});
    } else {
      (item["type"] == "message" ? content : reasoning) +=
          item["content"][0]["text"].get_ref<const std::string&>();
    }
  }
  Json message = {{"role", "assistant"}, {"content", std::move(content)}};
  if (!reasoning.empty()) message["reasoning_content"] = std::move(reasoning);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

ResponseStore::ResponseStore() : ResponseStore(Limits()) {}

void ResponseStore::Put(const std::string& id, Entry entry) {
  std::lock_guard lock(mutex_);
  if (const auto old = by_id_.find(id); old != by_id_.end()) Remove(old->second);
  const size_t bytes = entry.Bytes();
  if (bytes > limits_.bytes || limits_.responses == 0) return;
  while (entries_.size() >= limits_.responses || bytes_ + bytes > limits_.bytes)
    Remove(entries_.begin());
  bytes_ += bytes;
  by_id_[id] = entries_.insert(entries_.end(), {id, std::move(entry)});
}

std::optional<ResponseStore::Entry> ResponseStore::Find(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  return found->second->second;
}

bool ResponseStore::Erase(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  Remove(found->second);
  return true;
}

void ResponseStore::Remove(Entries::iterator entry) {
  bytes_ -= entry->second.Bytes();
  by_id_.erase(entry->first);
  entries_.erase(entry);
}

}  // namespace switchyard::openai
